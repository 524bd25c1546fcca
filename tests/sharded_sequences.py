"""Sequences to shard: of any documents, and of pretraining documents as they come."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from benchmarks.papers.wlb.packing_run import cut_at_windows
from evenstep.tools.simulate import sample_lengths

Int64Array = npt.NDArray[np.int64]

CONTEXT = 131_072
RANKS = st.integers(1, 17)
# Fewer tokens than ranks, documents below and above a tile, and one that is most of the sequence.
LENGTHS = st.lists(
    st.one_of(st.integers(1, 5), st.integers(1, 300), st.integers(1, 2000)),
    min_size=1,
    max_size=12,
).map(lambda values: np.array(values, np.int64))


def pretraining(count: int, seed: int = 0) -> list[Int64Array]:
    """Lengths of the documents of each sequence of `CONTEXT` tokens."""
    lengths = sample_lengths("pretrain-128k", 40 * count + 200, seed)
    pieces, number = cut_at_windows(lengths, CONTEXT)
    sequences = np.split(pieces, np.flatnonzero(np.diff(number)) + 1)[:count]
    assert all(int(lengths.sum()) == CONTEXT for lengths in sequences)
    return sequences
