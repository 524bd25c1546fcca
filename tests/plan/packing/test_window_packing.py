"""Original packing: full windows, every token once, and the same from wherever it goes on."""

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


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 60), st.data())
def test_stopped_after_any_window_it_goes_on_with_what_is_left(
    lengths: np.ndarray, context: int, data: st.DataObject
) -> None:
    whole = cut_at_windows(lengths, context)
    window = data.draw(st.integers(0, len(whole.windows)))
    taken = min(window * context, int(lengths.sum()))
    # What is left: the documents from the one that is not used up, and what of it is.
    first = int(np.searchsorted(lengths.cumsum(), taken, side="right"))
    begin = taken - int(lengths[:first].sum())
    rest = cut_at_windows(lengths[first:], context, begin=begin)
    after = whole.windows.offsets[window]
    assert (rest.pieces.documents + first).tolist() == whole.pieces.documents[after:].tolist()
    assert rest.pieces.begins.tolist() == whole.pieces.begins[after:].tolist()
    assert rest.pieces.ends.tolist() == whole.pieces.ends[after:].tolist()
    assert (rest.windows.offsets + after).tolist() == whole.windows.offsets[window:].tolist()


def test_a_window_without_tokens_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="context=0"):
        cut_at_windows(np.array([1]), 0)
