"""Updates of several steps, and steps of several micro-batches: whole updates reach the trainer,
resume, and end; scales add up; and ranks wait for each other alike."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evenstep
from documents import Documents
from evenstep.batch import loss_scale
from evenstep.batch.loss_scale import LossTotals
from evenstep.batch.step_info import RankLoads
from evenstep.errors import SampleError
from evenstep.loader.batcher.batcher_messages import StepProgress
from evenstep.loader.batcher.whole_updates import WholeUpdates
from evenstep.testing import assert_exact_resume
from loader_options import grouped
from worlds import POLICIES, SHARDS, Arbitrary, World

COUNT = 48


def make(accumulate: int, *, policy=None, dataset=None, **options) -> evenstep.DataLoader:
    return evenstep.DataLoader(
        Documents(COUNT, prompts=True) if dataset is None else dataset,
        policy=policy or evenstep.TokenBudget(256),
        **grouped(**{"buffer_size": 9, "shuffle": True, "accumulate": accumulate, **options}),
    )


def updates_of(steps):
    return [list(update) for _, update in groupby(steps, key=lambda step: step.update)]


def check_updates(steps, accumulate, *, begun=0) -> None:
    """Steps of an epoch, or of what was left of it after `begun` steps."""
    assert [step.step for step in steps] == list(range(begun, begun + len(steps)))
    for update in updates_of(steps):
        total = sum(step.global_supervised_tokens for step in update)
        for step in update:
            assert step.accumulate == accumulate
            assert step.step == step.update * accumulate + step.micro_step
            assert step.loss_scale == pytest.approx(step.supervised_tokens / max(total, 1))
            assert step.ends_update == (step is update[-1])


def test_an_update_of_more_steps_than_a_round_has_comes_whole() -> None:
    # Windows of 2 samples: an update needs far more than the store holds of them.
    options = {"num_workers": 1, "multiprocessing_context": "fork", "prefetch": 1}
    loader = make(11, buffer_size=2, **options)
    for _ in range(2):
        steps = [step for _, step in loader.steps()]
        assert len(steps) > 14
        assert Counter(i for step in steps for i in step.indices) == Counter(range(COUNT))
        check_updates(steps, 11)
    loader.close()


def test_epochs_resume_exactly_at_and_inside_updates() -> None:
    assert assert_exact_resume(lambda: make(4, loss_scaling="sample"), every=3) > 3


@pytest.mark.parametrize(
    ("accumulate", "merges", "changes"),
    [(4, True, {}), (5, False, {}), (4, False, {"buffer_size": 20})],
)
def test_what_is_left_of_an_update_is_one_of_its_own_where_batches_are_formed_again(
    accumulate, merges, changes
) -> None:
    loader = make(4)
    iterator, seen = loader.steps(), Counter()
    for _ in range(6):
        seen.update(next(iterator)[1].indices)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    again = make(accumulate, **changes)
    again.load_state_dict(evenstep.merge_states([state]) if merges else state)
    steps = [step for _, step in again.steps()]
    check_updates(steps, accumulate, begun=6)
    assert len(updates_of(steps)[0]) == -6 % accumulate
    for step in steps:
        seen.update(step.indices)
    assert seen == Counter(range(COUNT))
    again.close()


class Failing(Documents):
    def __getitem__(self, index):
        if index == 40:
            raise ValueError("torn")
        return super().__getitem__(index)


def test_an_update_that_will_never_be_whole_is_not_begun() -> None:
    steps = []

    def train() -> None:
        for _, step in make(7, dataset=Failing(COUNT), shuffle=False).steps():
            steps.append(step)

    with pytest.raises(SampleError, match="torn"):
        train()
    assert len(steps) >= 7
    assert len(steps) % 7 == 0
    assert steps[-1].ends_update


# Micro-batches


MICRO_BATCHES = Arbitrary(2, micro_batches=3)


def take_apart(samples):
    labels = [sample.pop("labels") for sample in samples]
    batch = evenstep.PadCollator()(samples)
    return {**batch, "first": torch.tensor([int(label[0]) for label in labels])}


def test_a_collate_function_may_take_its_samples_apart() -> None:
    loader = make(1, policy=MICRO_BATCHES, collate_fn=take_apart)
    fillers = sum(scale == 0 for _, step in loader.steps() for scale in step.loss_scales)
    assert fillers > 0


# By the steps that ranks plan


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
