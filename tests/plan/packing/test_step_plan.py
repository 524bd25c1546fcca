"""One step of both planners, and what each does by itself."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import SampleError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.outliers import (
    class_to_release,
    length_classes,
    max_cost_ratio,
    queue_heads,
)
from evenstep.plan.packing.step_plan import plan_steady, plan_step
from evenstep.plan.packing.wlb import plan_wlb

COST = DocumentCost(linear=10)
OPTIONS = PackingOptions(context=40, micro_batches=3, thresholds=(20, 35), cost=COST)
STEADY = SteadyOptions(context=40, micro_batches=3, max_delay=None, cost=COST)
POOLS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 6)), min_size=1, max_size=40).map(
    lambda pool: (
        np.array([length for length, _ in pool], np.int64),
        np.array(sorted((age for _, age in pool), reverse=True), np.int64),
    )
)
Pool = tuple[np.ndarray, np.ndarray]


def check(pool: Pool, groups: Groups, options: PackingOptions) -> None:
    lengths, _ = pool
    assert len(set(groups.members.tolist())) == len(groups.members) > 0
    assert len(groups) <= options.micro_batches
    for g in range(len(groups)):
        members = groups.group(g)
        assert lengths[members].sum() <= options.cap
        assert (np.diff(members) > 0).all()


@pytest.mark.parametrize("options", [OPTIONS, STEADY], ids=["wlb", "steady"])
@settings(max_examples=100)
@given(
    pool=POOLS,
    max_delay=st.none() | st.integers(0, 6),
    final=st.booleans(),
)
def test_something_is_planned_and_nothing_twice_or_over_the_cap(
    options: PackingOptions, pool: Pool, max_delay: int | None, final: bool
) -> None:
    options = dataclasses.replace(options, max_delay=max_delay)
    groups = plan_step(options, *pool, final=final)
    check(pool, groups, options)
    again = plan_step(options, *pool, final=final)
    assert again.members.tolist() == groups.members.tolist()
    assert again.offsets.tolist() == groups.offsets.tolist()


@pytest.mark.parametrize("options", [OPTIONS, STEADY], ids=["wlb", "steady"])
@settings(max_examples=50)
@given(pool=POOLS, max_delay=st.integers(0, 6))
def test_an_overdue_document_stays_only_where_older_overdue_ones_left_no_room(
    options: PackingOptions, pool: Pool, max_delay: int
) -> None:
    lengths, ages = pool
    options = dataclasses.replace(options, max_delay=max_delay)
    groups = plan_step(options, *pool)
    planned = set(groups.members.tolist())
    for position in np.flatnonzero(ages >= max_delay).tolist():
        if position in planned:
            continue
        assert len(groups) == options.micro_batches
        for g in range(len(groups)):
            members = groups.group(g)
            before = members[(ages[members] >= max_delay) & (members < position)]
            assert lengths[before].sum() + lengths[position] > options.cap


def test_a_document_longer_than_a_micro_batch_is_refused() -> None:
    for options in (OPTIONS, STEADY):
        with pytest.raises(SampleError, match="document 1 has 51 tokens"):
            plan_step(options, np.array([3, 51]), np.zeros(2, np.int64))


def test_where_nothing_waits_nothing_is_planned() -> None:
    nothing = np.empty(0, np.int64)
    for options in (OPTIONS, STEADY):
        assert len(plan_step(options, nothing, nothing)) == 0


# Algorithm 1


@settings(max_examples=50)
@given(POOLS)
def test_the_oldest_of_a_class_with_one_for_each_micro_batch_are_planned(pool: Pool) -> None:
    lengths, ages = pool
    classes = length_classes(lengths, OPTIONS.thresholds)
    planned = set(plan_wlb(*pool, OPTIONS).members.tolist())
    released = class_to_release(*queue_heads(classes, ages, 2), OPTIONS.micro_batches)
    if released:
        queue = np.flatnonzero(classes == released)
        assert planned & set(queue[: OPTIONS.micro_batches].tolist())
        # Others of any class only as a second one, so not more than that.
        outliers = [p for p in planned if classes[p] > 0]
        assert len(outliers) <= 2 * OPTIONS.micro_batches


@settings(max_examples=50)
@given(POOLS)
def test_if_no_queue_is_long_enough_outliers_need_similar_ones(
    pool: Pool,
) -> None:
    lengths, ages = pool
    classes = length_classes(lengths, OPTIONS.thresholds)
    planned = plan_wlb(*pool, OPTIONS).members
    outliers = planned[classes[planned] > 0]
    released = class_to_release(*queue_heads(classes, ages, 2), OPTIONS.micro_batches)
    if released or not len(outliers) or not (classes == 0).any():
        return
    waiting = np.flatnonzero(classes > 0)
    assert waiting[0] in outliers
    assert len(outliers) >= OPTIONS.micro_batches
    largest = np.sort(COST.of_documents(lengths[outliers]))[::-1]
    # The run; those beyond it are second ones, and smaller where anything is.
    assert largest[0] <= max_cost_ratio(int(classes[waiting[0]]), OPTIONS) * largest[2]


def test_queues_that_are_short_lend_to_each_other_and_not_to_what_differs() -> None:
    short = [5] * 6
    ages = np.arange(9)[::-1]
    lent = plan_wlb(np.array([34, 33, 35, *short]), ages, OPTIONS).members
    assert {0, 1, 2} <= set(lent.tolist())
    different = plan_wlb(np.array([34, 21, 50, *short]), ages, OPTIONS).members
    assert not {0, 1, 2} & set(different.tolist())


@settings(max_examples=50)
@given(POOLS)
def test_where_all_that_is_short_has_room_none_of_it_waits(pool: Pool) -> None:
    lengths, ages = pool
    short = lengths < 20
    # With as much room as all of them need at worst, which any order of placing leaves.
    roomy = dataclasses.replace(OPTIONS, max_tokens=int(lengths.sum()) + 50)
    planned = plan_wlb(lengths, ages, roomy).members
    assert set(np.flatnonzero(short).tolist()) <= set(planned.tolist())


def test_an_overdue_outlier_takes_similar_ones_with_it() -> None:
    lengths = np.array([33, 21, 36, 34, 5, 5])
    ages = np.array([4, 3, 2, 1, 0, 0])
    options = dataclasses.replace(OPTIONS, max_delay=4)
    planned = plan_wlb(lengths, ages, options).members.tolist()
    assert {0, 2, 3} <= set(planned)
    assert 1 not in planned


# The steady planner


LONG_ONES = SteadyOptions(
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
    groups = plan_steady(lengths, ages, LONG_ONES)
    assert lengths[groups.members].sum() <= LONG_ONES.step_cap


@settings(max_examples=50)
@given(POOLS)
def test_a_long_document_that_waited_long_is_planned(
    pool: tuple[np.ndarray, np.ndarray],
) -> None:
    lengths, ages = pool
    late = np.flatnonzero((lengths >= 20) & (ages >= LONG_ONES.patience))
    if len(late):
        assert late[0] in plan_steady(lengths, ages, LONG_ONES).members


@settings(max_examples=50)
@given(POOLS)
def test_short_documents_are_planned_first_in_first_out_as_far_as_they_have_room(
    pool: tuple[np.ndarray, np.ndarray],
) -> None:
    lengths, ages = np.minimum(pool[0], 19), pool[1]
    groups = plan_steady(lengths, ages, LONG_ONES)
    oldest = np.flatnonzero(lengths.cumsum() <= LONG_ONES.step_cap)
    assert set(groups.members.tolist()) <= set(oldest.tolist())


def test_long_documents_of_similar_length_are_planned_together() -> None:
    lengths = np.array([50, 22, 36, 23, 37, 24, *[4] * 12])
    ages = np.array([3, 3, 2, 2, 1, 1, *[0] * 12])
    planned = set(plan_steady(lengths, ages, LONG_ONES).members.tolist())
    assert {1, 3, 5} <= planned
    assert not {0, 2, 4} & planned


def test_a_second_long_document_balances_what_short_ones_cannot() -> None:
    # The oldest must be planned. Beside it 25 tokens are half its cost, and there is little to add.
    lengths = np.array([40, 38, 25, 24, 2, 2])
    ages = np.array([6, 1, 1, 1, 0, 0])
    options = dataclasses.replace(LONG_ONES, step_tokens=130, cost=DocumentCost(linear=0))
    groups = plan_steady(lengths, ages, options)
    assert sorted(lengths[groups.group(g)].max() for g in range(len(groups))) == [25, 38, 40]
    assert 3 in groups.members
