"""Runs of the sorted window: within target and limits, and of the oldest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import Cost, FittedCost, GroupShapes, PaddedTokenCost, TransformerCost
from evenstep.plan import Window
from evenstep.plan.policies.even.padded_round import pack_runs, unpack_runs
from evenstep.plan.policies.even.padded_runs import take_runs
from evenstep.plan.policies.even.sorted_window import (
    AGE,
    POSITION,
    SINGLE,
    RunLimits,
    SortedWindow,
)


def per_longest(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return shapes.longest.astype(np.float64)


def nothing(shapes: GroupShapes, *, packed: bool) -> np.ndarray:
    return np.zeros(len(shapes.longest))


COSTS: list[Cost] = [
    PaddedTokenCost(),
    TransformerCost(layers=2, hidden_size=64, heads=4, ffn_size=128),
    FittedCost(per_group=0.3, per_token=0.0, per_pair=0.0),
    per_longest,
    nothing,
]


def window_of(seed: int, count: int) -> Window:
    draw = np.random.default_rng(seed)
    return Window(
        lengths=draw.integers(1, draw.choice([5, 50, 300]), count),
        ages=np.sort(draw.integers(0, 14, count))[::-1].copy(),
        patches=draw.integers(0, 50, count),
    )


@st.composite
def problems(draw: st.DrawFn) -> tuple[SortedWindow, np.ndarray, np.ndarray, RunLimits]:
    count = draw(st.integers(1, 120))
    samples = SortedWindow.of(
        window_of(draw(st.integers(0, 2**32)), count), draw(st.sampled_from(COSTS))
    )
    shares = draw(
        st.lists(st.just(0.0) | st.floats(0.01, 4.0), min_size=1, max_size=min(count, 16))
    )
    wishes = draw(st.lists(st.just(-1.0) | st.floats(0, 0.99), min_size=16, max_size=16))
    targets = np.sort(float(samples.costs[SINGLE].max()) * np.array(shares))[::-1]
    limits = RunLimits(
        max_tokens=draw(st.sampled_from([100, 300, 1000])),
        max_patches=draw(st.sampled_from([None, 60, 300])),
        max_images=None,
        due=draw(st.integers(0, 14)),
    )
    return samples, targets, np.array(wishes[: len(shares)]), limits


@pytest.mark.filterwarnings("error")
@given(problems(), st.sampled_from([0.0, 0.2, -0.05]), st.booleans())
def test_runs_are_disjoint_and_within_target_and_limits(
    problem: Any, tilt: float, oldest: bool
) -> None:
    samples, targets, wishes, limits = problem
    runs = take_runs(samples, targets, limits, oldest=oldest, wishes=wishes, tilt=tilt)
    taken, ends, sizes = runs.members, runs.offsets, runs.sizes
    assert len(sizes) == len(targets)
    assert (sizes > 0).all()
    assert len(np.unique(taken)) == len(taken)
    last = taken[ends[1:] - 1]
    single, each = samples.costs[:, last]
    cost = single + (sizes - 1) * each
    lengths, patches = samples.numbers[0], samples.numbers[3]
    several = sizes > 1
    assert (cost <= targets * (1 + 1e-6))[several].all()
    assert (sizes * lengths[last] <= limits.max_tokens)[several].all()
    if limits.max_patches is not None:
        assert (np.add.reduceat(patches[taken], ends[:-1]) <= limits.max_patches)[several].all()


@given(problems())
def test_the_oldest_sample_that_is_due_goes(problem: Any) -> None:
    samples, targets, wishes, limits = problem
    taken = take_runs(samples, targets, limits, oldest=False, wishes=wishes).members
    oldest = int(samples.numbers[POSITION].argmin())
    if samples.numbers[AGE, oldest] >= limits.due:
        assert oldest in taken


@given(
    st.lists(st.tuples(st.floats(0, 1e30), st.integers(0, 100_000)), min_size=1, max_size=9),
)
def test_packed_costs_are_hardly_more_and_never_less(runs: list[tuple[float, int]]) -> None:
    costs, urgency = np.array([r[0] for r in runs]), np.array([r[1] for r in runs])
    read, order = unpack_runs(pack_runs(costs, urgency))
    assert (read >= costs).all()
    assert (read <= costs * (1 + 2.0**-36) + 1e-300).all()
    assert (order == np.minimum(urgency, 65_535)).all()
