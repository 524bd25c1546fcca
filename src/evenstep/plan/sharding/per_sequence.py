"""Per-sequence sharding: the sequence is cut into 2C chunks, regardless of documents.

Rank r of C holds chunks r and 2C - 1 - r, one from either end, so that a single document costs the
same on all ranks. Several documents need not: in the worst case, where one document of a C-th of
the sequence lies on both middle chunks, one rank has all of its cost, C times the mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.sharding.sharding import Sharding, check_documents, prefix_sums

__all__ = ["head_tail", "shard_per_sequence"]


def head_tail(ranks: int) -> Int64Array:
    """[2 x ranks] the rank that owns each chunk: 0, 1, ..., C - 1, C - 1, ..., 1, 0."""
    half = np.arange(ranks)
    return np.concatenate((half, half[::-1]))


def shard_per_sequence(lengths: npt.ArrayLike, ranks: int) -> Sharding:
    """Gives each rank two chunks of the sequence (WLB-LLM, section 3.1).

    If 2 x `ranks` does not divide the sequence, chunks differ by at most one token, and so do
    ranks.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence.
        ranks: context-parallel ranks.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    documents = check_documents(lengths, ranks)
    size, left = divmod(int(documents.sum()), 2 * ranks)
    # The first C tokens left over go to different ranks, and so do the rest.
    longer = np.arange(2 * ranks) < left  # [chunks]
    bounds = prefix_sums(size + longer)
    return Sharding.of_chunks(documents, bounds, head_tail(ranks), ranks, "per-sequence")
