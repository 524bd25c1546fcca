"""What all ranks aim at, how one rank fills its micro-batches to the agreed cost, oldest documents
first, and the last steps, which hold everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.packing.fill import drain, fill
from evenstep.plan.packing.outliers import Aim, agree, listed, named
from evenstep.plan.packing.step_limits import DocumentCost, PackingOptions

TOKENS = DocumentCost(linear=1, quadratic=0)
OPTIONS = PackingOptions(context=10, micro_batches=2, max_tokens=12, max_delay=5, cost=TOKENS)


def filled(
    lengths: list[int], cost: int, *, ages: list[int] | None = None, released: tuple[int, ...] = ()
) -> list[list[int]]:
    """Tokens of the documents of each micro-batch; without attention, a token costs 1."""
    groups = fill(
        np.array(lengths),
        np.array(ages or [0] * len(lengths)),
        OPTIONS,
        released=np.array(released, np.int64),
        level=10,
        cost=cost,
    )
    return [[lengths[i] for i in groups.group(g)] for g in range(len(groups))]


@pytest.mark.parametrize(
    ("lengths", "cost", "options", "expected"),
    [
        # The oldest documents are placed from the dearest to the cheapest.
        ([4, 6, 5, 5, 3, 3], 10, {}, [[4, 6], [5, 5]]),
        ([3, 4, 6, 7, 9], 10, {}, [[3, 7], [4, 6]]),
        # Two of six tokens fit in one micro-batch each; the third would make one of twelve, so it
        # waits, and others fill the gap.
        ([6, 6, 6, 4, 3], 10, {}, [[6, 4], [6, 3]]),
        # An outlier is in every micro-batch, and dearer ones get less beside them.
        ([1, 1, 1, 12, 11], 12, {"released": (3, 4)}, [[12], [1, 11]]),
        # Those that must not wait come first, whatever they cost.
        ([9, 9, 9, 3], 9, {"ages": [0, 0, 0, 5]}, [[3], [9]]),
    ],
)
def test_micro_batches_are_filled_to_the_cost(
    lengths: list[int], cost: int, options: dict[str, Any], expected: list[list[int]]
) -> None:
    assert filled(lengths, cost, **options) == expected


# Last steps

LAST = PackingOptions(context=40, micro_batches=3, cost=DocumentCost(linear=10))
DOCUMENTS = st.lists(st.integers(1, 50), max_size=40).map(lambda v: np.array(v, np.int64))


@given(DOCUMENTS, st.integers(1, 8))
def test_ranks_that_agreed_on_a_number_make_as_many_steps(lengths: np.ndarray, wanted: int) -> None:
    least = len(drain(lengths, LAST))
    made = len(drain(lengths, LAST, steps=wanted))
    assert made == min(max(wanted, least), len(lengths))


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [
        ([10] * 24, [[4, 4, 4], [4, 4, 4]]),
        ([50, 50, 50, *[10] * 15], [[1, 1, 1], [5, 5, 5]]),
    ],
)
def test_micro_batches_of_similar_cost_form_a_step(
    lengths: list[int], sizes: list[list[int]]
) -> None:
    made = drain(np.array(lengths), LAST)
    assert [sorted(groups.sizes.tolist()) for groups in made] == sizes


# Aims

SQUARES = PackingOptions(
    context=10, micro_batches=2, max_tokens=60, max_delay=5, cost=DocumentCost(linear=0)
)
"""A document costs the square of its tokens."""


def aim(ranks: list[list[tuple[int, int]]], options: PackingOptions = SQUARES) -> Aim:
    """Of windows of documents of so many tokens and rounds of waiting."""
    windows = [np.array(rank, np.int64).T for rank in ranks]
    tokens = sum(int(lengths.sum()) for lengths, _ in windows)
    cost = sum(int((lengths**2).sum()) for lengths, _ in windows)
    return agree(tokens, cost, np.stack([named(*w, options) for w in windows]), options)


def released(ranks: list[list[tuple[int, int]]]) -> list[list[int]]:
    """Tokens of the outliers of the step on each rank."""
    found = []
    for rank, places in zip(ranks, aim(ranks).released):
        lengths, ages = np.array(rank, np.int64).T
        found.append(lengths[listed(lengths, ages, SQUARES)][places[places >= 0]].tolist())
    return found


SHORT = [(2, 0)] * 50
BOTH = [*SHORT, (20, 1), (21, 0), (3, 0)]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        # Outliers wait until every rank has one for each micro-batch.
        ([[*SHORT, (20, 1)]], [[]]),
        ([BOTH, [*SHORT, (20, 0)]], [[], []]),
        ([BOTH, [*SHORT, (20, 0), (20, 0)]], [[20, 21], [20, 20]]),
        # The nearest in cost to the oldest are planned.
        ([[*SHORT, (25, 0), (25, 0), (20, 2), (21, 0)]], [[20, 21]]),
        ([[*SHORT, (25, 2), (25, 0), (20, 0), (21, 0)]], [[25, 25]]),
        # Beside 12 tokens there is room for 48 that cost 2 each: 240 in all, where 29 cost 841.
        ([[*SHORT, (12, 1), (29, 0)]], [[]]),
        # One that has waited long is planned with what is nearest.
        ([[*SHORT, (29, 5), (12, 1)], [*SHORT, (14, 0)]], [[29, 12], [14]]),
        # Those that must not wait come first, the oldest before the others.
        ([[*SHORT, (12, 7), (13, 6), (12, 0), (29, 9)]], [[29, 12]]),
    ],
)
def test_outliers_are_released_where_they_make_equal_micro_batches_or_must_not_wait(
    ranks: list[list[tuple[int, int]]], expected: list[list[int]]
) -> None:
    assert released(ranks) == expected
    dearest = max((length for rank in expected for length in rank), default=0)
    assert aim(ranks).cost == max(dearest**2, 20)
