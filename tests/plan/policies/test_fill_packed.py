"""Packed groups that hold and cost what is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.cost import (
    Cost,
    FittedCost,
    GroupShapes,
    MemoryLimit,
    PaddedTokenCost,
    TransformerCost,
)
from evenstep.plan.policies.even.fill_packed import CostSplit, PackedStepFiller, even_costs
from evenstep.plan.policy import Window

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=120)
COSTS = st.sampled_from(
    [
        PaddedTokenCost(),
        TransformerCost(layers=2, hidden_size=8, heads=2, ffn_size=16),
        FittedCost(per_group=3.0, per_token=0.1, per_pair=0.01),
        FittedCost(per_group=50.0, per_token=0.0, per_pair=1.0),
    ]
)


def column(lengths: list[int]) -> np.ndarray:
    return np.array(lengths, np.int64)


@given(LENGTHS, COSTS)
def test_a_cost_taken_apart_adds_up_to_itself(lengths: list[int], cost: Cost) -> None:
    split = CostSplit.of(column(lengths), cost)
    whole = cost(GroupShapes.measure(lengths, [0, len(lengths)]), packed=True)[0]
    assert split.fixed + split.added.sum() == pytest.approx(whole)
    by_tokens = split.per_token * sum(lengths)
    assert split.fixed + by_tokens + split.excess.sum() == pytest.approx(whole)


@given(LENGTHS, COSTS, st.data())
def test_even_costs_add_up_and_have_room_for_the_longest_samples(
    lengths: list[int], cost: Cost, data: st.DataObject
) -> None:
    split = CostSplit.of(column(lengths), cost)
    groups = data.draw(st.integers(1, len(lengths)))
    costs = even_costs(split, sum(lengths) / groups, groups)
    assert (np.diff(costs) <= 0).all()
    total = groups * split.fixed + split.added.sum()
    room = costs - split.fixed - split.per_token * sum(lengths) / groups
    longest = np.sort(split.excess)[::-1][:groups]
    small = 1e-9 * total
    assert (room >= longest - small).all()
    assert costs.sum() >= total - small
    if room[-1] > longest[-1] + small:  # else short samples cannot make up for the longest
        assert costs.sum() == pytest.approx(total)


@given(
    LENGTHS,
    COSTS,
    st.lists(st.floats(0.05, 3.0), min_size=1, max_size=30),
    st.integers(0, 4),
    st.none() | st.integers(1, 30),
    st.integers(0, 2**32),
)
def test_every_target_gets_a_group_within_the_limits(
    lengths: list[int],
    cost: Cost,
    shares: list[float],
    max_wait: int,
    max_patches: int | None,
    seed: int,
) -> None:
    draw = np.random.default_rng(seed)
    window = Window(
        lengths=column(lengths),
        ages=np.sort(draw.integers(0, 6, len(lengths)))[::-1],
        patches=draw.integers(0, 20, len(lengths)),
    )
    split = CostSplit.of(window.lengths, cost)
    targets = np.sort(shares[: len(lengths)])[::-1] * float(split.fixed + 300 * split.per_token)
    filler = PackedStepFiller(
        limit=MemoryLimit(max_tokens=300, max_patches=max_patches), max_wait=max_wait
    )
    groups = filler.fill(window, split, targets)
    assert len(groups) == len(targets)
    assert len(np.unique(groups.members)) == len(groups.members)
    shapes = groups.shapes(window.lengths)
    assert (shapes.tokens <= 300).all()
    if max_patches is not None:
        patches = np.add.reduceat(window.patches[groups.members], groups.offsets[:-1])
        assert ((patches <= max_patches) | (shapes.samples == 1)).all()
    overdue = np.flatnonzero(window.ages >= max_wait)[: len(targets)]
    assert np.isin(overdue, groups.members).all()
