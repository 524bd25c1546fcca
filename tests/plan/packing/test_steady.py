"""One step of the steady planner; what it shares with Algorithm 1 is in test_step_plan.py."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import SteadyOptions
from evenstep.plan.packing.step_plan import plan_steady

OPTIONS = SteadyOptions(
    context=40, micro_batches=3, max_delay=6, thresholds=(20,), cost=DocumentCost(linear=10)
)
POOLS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), min_size=1, max_size=40).map(
    lambda pool: (
        np.array([length for length, _ in pool], np.int64),
        np.array(sorted((age for _, age in pool), reverse=True), np.int64),
    )
)


@settings(max_examples=50)
@given(POOLS)
def test_a_step_holds_no_more_tokens_than_it_may(
    pool: tuple[np.ndarray, np.ndarray],
) -> None:
    lengths, ages = pool
    groups = plan_steady(lengths, ages, OPTIONS)
    assert lengths[groups.members].sum() <= OPTIONS.step_cap


@settings(max_examples=50)
@given(POOLS)
def test_a_long_document_that_waited_long_is_planned(
    pool: tuple[np.ndarray, np.ndarray],
) -> None:
    lengths, ages = pool
    late = np.flatnonzero((lengths >= 20) & (ages >= OPTIONS.patience))
    if len(late):
        assert late[0] in plan_steady(lengths, ages, OPTIONS).members


@settings(max_examples=50)
@given(POOLS)
def test_short_documents_are_planned_first_in_first_out_as_far_as_they_have_room(
    pool: tuple[np.ndarray, np.ndarray],
) -> None:
    lengths, ages = np.minimum(pool[0], 19), pool[1]
    groups = plan_steady(lengths, ages, OPTIONS)
    oldest = np.flatnonzero(lengths.cumsum() <= OPTIONS.step_cap)
    assert set(groups.members.tolist()) <= set(oldest.tolist())


def test_long_documents_of_similar_length_are_planned_together() -> None:
    lengths = np.array([50, 22, 36, 23, 37, 24, *[4] * 12])
    ages = np.array([3, 3, 2, 2, 1, 1, *[0] * 12])
    planned = set(plan_steady(lengths, ages, OPTIONS).members.tolist())
    assert {1, 3, 5} <= planned
    assert not {0, 2, 4} & planned


def test_a_second_long_document_balances_what_short_ones_cannot() -> None:
    # The oldest must be planned. Beside it 25 tokens are half its cost, and there is little to add.
    lengths = np.array([40, 38, 25, 24, 2, 2])
    ages = np.array([6, 1, 1, 1, 0, 0])
    options = dataclasses.replace(OPTIONS, step_tokens=130, cost=DocumentCost(linear=0))
    groups = plan_steady(lengths, ages, options)
    assert sorted(lengths[groups.group(g)].max() for g in range(len(groups))) == [25, 38, 40]
    assert 3 in groups.members
