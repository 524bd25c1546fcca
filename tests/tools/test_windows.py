"""Documents cut or packed into windows: every token once, every window full."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.wlb.window_packing import cut_at_windows, fixed_length
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.packing.step_limits import DocumentCost

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


WORK = DocumentCost(linear=20)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), max_size=40), st.integers(60, 90))
def test_windows_are_full_but_the_last_and_hold_every_token_once(
    values: list[int], context: int
) -> None:
    lengths = np.array(values, np.int64)
    packed = fixed_length(lengths, context, cost=WORK)
    pieces, windows = packed.pieces, packed.windows
    assert sorted(windows.members.tolist()) == list(range(len(pieces)))
    held = [int(pieces.lengths[windows.group(w)].sum()) for w in range(len(windows))]
    assert all(tokens == context for tokens in held[:-1])
    assert all(0 < tokens <= context for tokens in held)
    for document, length in enumerate(values):
        mine = pieces.documents == document
        begins, ends = pieces.begins[mine].tolist(), pieces.ends[mine].tolist()
        assert begins == [0, *ends[:-1]]
        assert ends[-1] == length


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=40))
def test_full_windows_come_in_order_of_descending_cost(values: list[int]) -> None:
    packed = fixed_length(np.array(values, np.int64), 60, cost=WORK)
    costs = WORK.of_documents(packed.pieces.lengths)
    load = [int(costs[packed.windows.group(w)].sum()) for w in range(len(packed.windows))]
    full = load if sum(values) % 60 == 0 else load[:-1]
    assert full == sorted(full, reverse=True)


def test_a_document_longer_than_a_window_is_refused() -> None:
    with pytest.raises(SampleError, match="document 1 has 11 tokens"):
        fixed_length(np.array([3, 11]), 10)
