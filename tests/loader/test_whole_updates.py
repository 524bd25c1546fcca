"""Steps of an update wait for each other, on all ranks alike, and know what the update counts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.batch import loss_scale
from evenstep.batch.loss_scale import LossTotals
from evenstep.loader.batcher.progress import StepProgress
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
