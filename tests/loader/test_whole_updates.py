"""Steps of an update wait for each other, on all ranks alike, and know what the update counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import loss_scale
from evenstep.batch.loss_scale import LossTotals
from evenstep.batch.step_info import RankLoads
from evenstep.loader.batcher.batcher_messages import StepProgress
from evenstep.loader.batcher.whole_updates import WholeUpdates
from worlds import POLICIES, SHARDS, World

WORLDS = st.builds(
    World,
    policy=POLICIES,
    shards=SHARDS,
    buffer_size=st.integers(2, 20),
    exhausted=st.sampled_from(["pad", "stop"]),
    accumulate=st.integers(1, 9),
)


@given(WORLDS, st.sampled_from(["token", "sample"]))
def test_loss_scales_of_all_ranks_and_steps_of_an_update_add_up(world, mode) -> None:
    accumulate = world.accumulate
    ranks = [WholeUpdates(LossTotals()) for _ in world.shards]
    out = [[] for _ in ranks]
    for steps in world.steps():
        for updates, step, own in zip(ranks, steps, out):
            own += updates.add(step, StepProgress(step.members))
    for updates, own in zip(ranks, out):
        own += updates.end()
    for first in range(0, len(out[0]), accumulate):
        scales = []
        for rank, own in enumerate(out):
            for one in own[first : first + accumulate]:
                total = one.totals.counted(mode)
                totals = one.planned.totals
                scales.append(loss_scale(totals, rank, mode, total=total))
        assert sum(scales) == pytest.approx(len(out) if any(scales) else 0)
        counted = any(
            one.planned.totals.supervised_tokens.any() for one in out[0][first : first + accumulate]
        )
        assert any(scales) or not counted


@given(WORLDS, st.integers(0, 9), st.booleans())
def test_where_ranks_wait_at_updates_each_step_has_the_loads_of_those_handed_out(
    world, received, packed
) -> None:
    updates, out, accumulate = WholeUpdates(LossTotals(), "update", packed), [], world.accumulate
    for number, (step, *_) in enumerate(world.steps()):
        out += updates.add(step, None if number < received else StepProgress(step.members))
    out += updates.end()
    costs = np.array([one.planned.totals.cost for one in out])
    numbers = np.array([one.planned.index for one in out]) // accumulate
    for one in out:
        of_update = costs[numbers == one.planned.index // accumulate]
        assert one.loads.cost == pytest.approx(of_update.sum(axis=0))
        assert (one.loads.groups == len(of_update)).all()
        each = [
            RankLoads.of(other.planned.totals, packed=packed).pairs
            for other in out
            if other.planned.index // accumulate == one.planned.index // accumulate
        ]
        assert one.loads.pairs == pytest.approx(sum(each))
