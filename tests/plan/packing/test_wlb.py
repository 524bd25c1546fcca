"""One step of Algorithm 1; what it shares with the steady planner is in test_step_plan.py."""

from __future__ import annotations

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.packing.outliers import (
    class_to_release,
    length_classes,
    max_cost_ratio,
    queue_heads,
)
from evenstep.plan.packing.wlb import plan_wlb

COST = DocumentCost(linear=10)
OPTIONS = PackingOptions(context=40, micro_batches=3, thresholds=(20, 35), cost=COST)
POOLS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 6)), min_size=1, max_size=40).map(
    lambda pool: (
        np.array([length for length, _ in pool], np.int64),
        np.array(sorted((age for _, age in pool), reverse=True), np.int64),
    )
)
Pool = tuple[np.ndarray, np.ndarray]


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
