"""Fixed-length packing: every window is full, and every token is in one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import SampleError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.window_packing import fixed_length

COST = DocumentCost(linear=20)


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), max_size=40), st.integers(60, 90))
def test_windows_are_full_but_the_last_and_hold_every_token_once(
    values: list[int], context: int
) -> None:
    lengths = np.array(values, np.int64)
    packed = fixed_length(lengths, context, cost=COST)
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
    packed = fixed_length(np.array(values, np.int64), 60, cost=COST)
    costs = COST.of_documents(packed.pieces.lengths)
    load = [int(costs[packed.windows.group(w)].sum()) for w in range(len(packed.windows))]
    full = load if sum(values) % 60 == 0 else load[:-1]
    assert full == sorted(full, reverse=True)


def test_a_document_longer_than_a_window_is_refused() -> None:
    with pytest.raises(SampleError, match="document 1 has 11 tokens"):
        fixed_length(np.array([3, 11]), 10)
