"""Invariants of both planners, in any step and the last; each also has its own file."""

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
from evenstep.plan.packing.step_plan import plan_step

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
