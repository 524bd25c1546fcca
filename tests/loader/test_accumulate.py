"""Gradients of several steps added up: whole updates reach the trainer, and resume, and end."""

from __future__ import annotations

import json
from collections import Counter
from itertools import groupby

import pytest

import evenstep
from documents import Documents
from evenstep.errors import SampleError
from evenstep.testing import assert_exact_resume
from loader_options import grouped
from worlds import Arbitrary

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


def test_micro_batches_of_all_steps_of_an_update_are_weighed_together() -> None:
    steps = [step for _, step in make(3, policy=Arbitrary(2, micro_batches=2)).steps()]
    for update in updates_of(steps):
        assert sum(sum(step.loss_scales) for step in update) == pytest.approx(1.0)
        assert all(sum(s.loss_scales) == pytest.approx(s.loss_scale) for s in update)


@pytest.mark.parametrize(("mode", "buffer_size"), [("sample", 9), ("token", 40)])
def test_epochs_resume_exactly_at_and_inside_updates(mode, buffer_size) -> None:
    options = {"buffer_size": buffer_size, "loss_scaling": mode}
    assert assert_exact_resume(lambda: make(4, **options)) > 10


@pytest.mark.parametrize("how", ["merged", "accumulate", "buffer_size"])
def test_what_is_left_of_an_update_is_one_of_its_own_where_batches_are_formed_again(how) -> None:
    loader = make(4)
    iterator, seen = loader.steps(), Counter()
    for _ in range(6):
        seen.update(next(iterator)[1].indices)
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    accumulate, changes = 4, {}
    if how == "merged":
        state = evenstep.merge_states([state])
    elif how == "accumulate":
        accumulate = 5
    else:
        changes = {"buffer_size": 20}
    again = make(accumulate, **changes)
    again.load_state_dict(state)
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
