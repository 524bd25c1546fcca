"""The lengths of a whole data set: counted once, kept in a file, and refused when they are stale.

Only policies that plan beforehand need them: see `evenstep.plan.offline`.
"""

from evenstep.lengths.cache import read_lengths, write_lengths
from evenstep.lengths.count import count_lengths

__all__ = ["count_lengths", "read_lengths", "write_lengths"]
