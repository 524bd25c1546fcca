"""Per-sequence sharding: the sequence is cut into 2C chunks, whatever documents it holds.

Rank r of C holds chunks r and 2C - 1 - r, one from either end, so that the work of a single
document is equal on all ranks. Of several documents it is not: at worst, where one document of a
C-th of the sequence lies on both middle chunks, one rank has all of its work, C times the mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.sharding.sharding import Sharding, check_documents

__all__ = ["head_tail", "shard_per_sequence"]


def head_tail(ranks: int) -> Int64Array:
    """[2 x ranks] the rank that owns each chunk: 0, 1, ..., C - 1, C - 1, ..., 1, 0."""
    half = np.arange(ranks)
    return np.concatenate((half, half[::-1]))


def shard_per_sequence(lengths: npt.ArrayLike, ranks: int) -> Sharding:
    """Two chunks of the sequence to each rank (WLB-LLM, section 3.1).

    Where 2 x `ranks` does not divide the sequence, chunks differ by at most one token, and so do
    ranks.

    Args:
        lengths: [documents] tokens of each, in the order of the sequence.
        ranks: context-parallel ranks.

    Raises:
        ConfigurationError: no documents, one without tokens, or no ranks.
    """
    documents = check_documents(lengths, ranks)
    size, left = divmod(int(documents.sum()), 2 * ranks)
    # Of what is left over, the first C tokens go to different ranks, and the rest again.
    longer = np.arange(2 * ranks) < left
    bounds = np.zeros(2 * ranks + 1, np.int64)
    (size + longer).cumsum(out=bounds[1:])
    return Sharding.of_chunks(documents, bounds, head_tail(ranks), ranks, "per-sequence")
