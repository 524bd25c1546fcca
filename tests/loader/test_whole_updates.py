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
)


@given(WORLDS, st.integers(1, 9))
def test_updates_come_out_whole_and_at_the_same_exchange_on_all_ranks(world, accumulate) -> None:
    ranks = [WholeUpdates(accumulate, LossTotals()) for _ in world.shards]
    settled, out = [[] for _ in ranks], [[] for _ in ranks]
    for made in world.rounds():
        for updates, steps, planned, own in zip(ranks, made, settled, out):
            planned += steps
            for step in steps:
                own += updates.add(step, StepProgress(step.members))
            assert len(own) == len(planned) // accumulate * accumulate
            held = planned[len(own) :]
            assert updates.samples_held == sum(len(step.members) for step in held)
    for updates, planned, own in zip(ranks, settled, out):
        own += updates.end()
        assert (updates.end(), updates.samples_held) == ([], 0)
        assert [one.planned for one in own] == planned
        last = [(s.index + 1) % accumulate == 0 or s is planned[-1] for s in planned]
        assert [one.ends_update for one in own] == last


@given(WORLDS, st.integers(1, 9), st.sampled_from(["token", "sample", "approximate"]))
def test_loss_scales_of_all_ranks_and_steps_of_an_update_add_up(world, accumulate, mode) -> None:
    ranks = [WholeUpdates(accumulate, LossTotals()) for _ in world.shards]
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
                mean = one.planned.mean_supervised
                total = one.totals.counted(mode)
                totals = one.planned.totals
                scales.append(loss_scale(totals, rank, mode, mean_supervised=mean, total=total))
        assert sum(scales) == pytest.approx(len(out) if any(scales) else 0)
        counted = any(
            one.planned.totals.supervised_tokens.any() for one in out[0][first : first + accumulate]
        )
        assert any(scales) or not counted


@given(WORLDS, st.integers(1, 9), st.data())
def test_a_pass_that_begins_in_any_round_makes_the_same_updates(world, accumulate, data) -> None:
    updates, whole, rounds = WholeUpdates(accumulate, LossTotals()), [], []
    for made in world.rounds():
        if made[0]:
            rounds.append((updates.totals, made[0]))
        for step in made[0]:
            whole += updates.add(step, StepProgress(step.members))
    whole += updates.end()
    if not rounds:
        return
    first = data.draw(st.integers(0, len(rounds) - 1))
    before, steps = rounds[first]
    received = data.draw(st.integers(0, len(steps)))
    again = WholeUpdates(accumulate, before)
    rest = [one for step in steps[:received] for one in again.add(step, None)]
    assert not rest
    for step in [*steps[received:], *(step for _, later in rounds[first + 1 :] for step in later)]:
        rest += again.add(step, StepProgress(step.members))
    rest += again.end()

    def shown(ones):
        return [(one.planned.index, one.totals, one.ends_update) for one in ones]

    assert shown(rest) == shown(whole)[steps[0].index + received :]
