"""A second long document where short ones cannot balance, under all caps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.packing.long_pairs import pair_long_documents

CAP = 60


def ask(values: list[int], count: int, left: int, short: float) -> tuple[np.ndarray, ...]:
    lengths = np.array(values, np.int64)
    costs = lengths * (lengths + 5)
    waiting = np.argsort(lengths, kind="stable")
    run = waiting[-count:]
    second = pair_long_documents(
        lengths, costs, run, waiting, cap=CAP, left=left, short_tokens=short, density=8.0
    )
    return lengths, costs, run, second


@settings(max_examples=50)
@given(
    st.lists(st.integers(20, CAP), min_size=1, max_size=15),
    st.integers(1, 5),
    st.integers(0, 200),
    st.floats(0, 300),
)
def test_seconds_are_other_documents_under_the_cap_and_the_largest_cost(
    values: list[int], count: int, left: int, short: float
) -> None:
    count = min(count, len(values))
    lengths, costs, run, second = ask(values, count, left, short)
    added = list(second.values())
    assert len(set(added)) == len(added)
    assert not set(added) & set(run.tolist())
    assert sum(lengths[p] for p in added) <= left
    for at, position in second.items():
        assert lengths[run[at]] + lengths[position] <= CAP
        assert costs[run[at]] + costs[position] <= costs[run].max()


def test_the_one_of_least_cost_gets_the_longest_that_fits() -> None:
    # Runs of 60, 37 and 36 tokens: beside 36 there is room for 24, beside 37 for 23.
    _, _, run, second = ask([60, 37, 36, 24, 22, 20], 3, left=1000, short=0.0)
    assert {int(run[at]): position for at, position in second.items()} == {2: 3, 1: 4}
