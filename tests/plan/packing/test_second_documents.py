"""A second long document where short ones cannot level, under all caps."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.packing.long_pairs import second_documents

CAP = 60


def ask(values: list[int], count: int, left: int, short: float) -> tuple[np.ndarray, ...]:
    lengths = np.array(values, np.int64)
    works = lengths * (lengths + 5)
    waiting = np.argsort(lengths, kind="stable")
    run = waiting[-count:]
    second = second_documents(
        lengths, works, run, waiting, cap=CAP, left=left, short_tokens=short, density=8.0
    )
    return lengths, works, run, second


@settings(max_examples=50)
@given(
    st.lists(st.integers(20, CAP), min_size=1, max_size=15),
    st.integers(1, 5),
    st.integers(0, 200),
    st.floats(0, 300),
)
def test_seconds_are_other_documents_under_the_cap_and_the_largest_work(
    values: list[int], count: int, left: int, short: float
) -> None:
    count = min(count, len(values))
    lengths, works, run, second = ask(values, count, left, short)
    added = list(second.values())
    assert len(set(added)) == len(added)
    assert not set(added) & set(run.tolist())
    assert sum(lengths[p] for p in added) <= left
    for place, position in second.items():
        assert lengths[run[place]] + lengths[position] <= CAP
        assert works[run[place]] + works[position] <= works[run].max()


def test_what_short_documents_can_level_gets_none() -> None:
    *_, second = ask([20, 30, 31, 32], 3, left=1000, short=1000.0)
    assert second == {}


def test_the_one_with_least_work_gets_the_longest_that_fits() -> None:
    # Runs of 60, 37 and 36 tokens: beside 36 there is room for 24, beside 37 for 23.
    _, _, run, second = ask([60, 37, 36, 24, 22, 20], 3, left=1000, short=0.0)
    assert {int(run[place]): position for place, position in second.items()} == {2: 3, 1: 4}
