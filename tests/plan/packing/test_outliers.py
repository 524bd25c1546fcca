"""What all ranks aim at, from what each says of its window; by value."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.plan.packing.outliers import Aim, agree, listed, named
from evenstep.plan.packing.step_limits import DocumentCost, PackingOptions

OPTIONS = PackingOptions(
    context=10, micro_batches=2, max_tokens=60, max_delay=5, cost=DocumentCost(linear=0)
)
"""A document costs the square of its tokens."""


def aim(ranks: list[list[tuple[int, int]]], options: PackingOptions = OPTIONS) -> Aim:
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
        found.append(lengths[listed(lengths, ages, OPTIONS)][places[places >= 0]].tolist())
    return found


def test_the_level_is_that_of_documents_which_cost_no_more() -> None:
    # With the 20, ten tokens would cost 170, and 20 is dearer; 2 and 2 cost 20 in ten tokens.
    assert aim([[(2, 0), (2, 0), (20, 0)]]).level == 20
    assert aim([[(2, 0)], [(2, 0), (20, 0)]]).level == 20
    # No document can be left out where all would be.
    assert aim([[(20, 0), (20, 0)]]).level == 200


def test_outliers_wait_until_every_rank_has_one_for_each_micro_batch() -> None:
    short = [(2, 0)] * 20
    assert released([[*short, (20, 1)]]) == [[]]
    assert aim([[*short, (20, 1)]]).cost == 20
    both = [*short, (20, 1), (21, 0), (3, 0)]
    assert released([both, [*short, (20, 0)]]) == [[], []]
    assert released([both, [*short, (20, 0), (20, 0)]]) == [[20, 21], [20, 20]]
    assert aim([both, [*short, (20, 0), (20, 0)]]).cost == 21**2


def test_the_nearest_in_cost_to_the_oldest_are_planned() -> None:
    short = [(2, 0)] * 50
    assert released([[*short, (25, 0), (25, 0), (20, 2), (21, 0)]]) == [[20, 21]]
    assert released([[*short, (25, 2), (25, 0), (20, 0), (21, 0)]]) == [[25, 25]]


def test_outliers_of_which_ordinary_documents_cannot_make_equal_micro_batches_wait() -> None:
    # Beside 12 tokens there is room for 48 that cost 2 each: 240 in all, where 29 cost 841.
    assert released([[*[(2, 0)] * 50, (12, 1), (29, 0)]]) == [[]]


def test_an_outlier_that_has_waited_long_is_planned_with_what_is_nearest() -> None:
    short = [(2, 0)] * 50
    ranks = [[*short, (29, 5), (12, 1)], [*short, (14, 0)]]
    assert released(ranks) == [[29, 12], [14]]
    assert aim(ranks).cost == 29**2
    # Those that must not wait come first, the oldest before the others.
    assert released([[*short, (12, 7), (13, 6), (12, 0), (29, 9)]]) == [[29, 12]]


def test_a_cost_without_attention_makes_documents_over_the_context_outliers() -> None:
    options = PackingOptions(
        context=10, micro_batches=1, max_tokens=30, cost=DocumentCost(linear=1, quadratic=0)
    )
    made = agree(4 + 30, 4 + 30, named(np.array([4, 30]), np.zeros(2, int), options)[None], options)
    assert (made.level, made.cost, made.released.tolist()) == (10, 30, [[0]])


@pytest.mark.parametrize("age", [0, 2**20 - 1, 2**40])
def test_lengths_and_ages_share_a_number_of_a_message(age: int) -> None:
    made = named(np.array([2**31 - 1]), np.array([age]), OPTIONS)
    assert made[0] >> 20 == 2**31 - 1
    assert made[0] & (2**20 - 1) == min(age, 2**20 - 1)
    assert made[1:].tolist() == [0] * 31
