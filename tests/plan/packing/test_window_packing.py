"""Original packing: full windows, and every token once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.packing.window_packing import cut_at_windows

LENGTHS = st.lists(st.integers(1, 100), max_size=30).map(lambda v: np.array(v, np.int64))


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 60))
def test_windows_are_full_and_read_out_in_order_they_are_the_stream(
    lengths: np.ndarray, context: int
) -> None:
    cut = cut_at_windows(lengths, context)
    pieces = cut.pieces
    stream = [(d, t) for d, length in enumerate(lengths.tolist()) for t in range(length)]
    read = [
        (d, t)
        for d, a, b in zip(pieces.documents.tolist(), pieces.begins.tolist(), pieces.ends.tolist())
        for t in range(a, b)
    ]
    assert read == stream
    assert cut.windows.members.tolist() == list(range(len(pieces)))
    held = [int(pieces.lengths[cut.windows.group(w)].sum()) for w in range(len(cut.windows))]
    assert all(tokens == context for tokens in held[:-1])
    assert sum(held) == len(stream)


@pytest.mark.parametrize(
    ("lengths", "context", "said"),
    [
        ([1], 0, "context=0"),
        ([2**31] * 40, 64, "1,342,177,280 windows of 64, more than"),
    ],
)
def test_windows_without_tokens_or_more_than_memory_holds_are_refused(
    lengths: list[int], context: int, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        cut_at_windows(np.array(lengths), context)
