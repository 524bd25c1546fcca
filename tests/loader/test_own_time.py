"""A rank's own time ends where its gradients are complete, however the trainer takes its steps."""

from __future__ import annotations

import copy
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from evenstep.batch.step_info import StepInfo
from evenstep.loader import own_time
from evenstep.loader.notices import Notices
from evenstep.loader.own_time import OwnTime
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.protocol.receipts import StepTotals
from evenstep.protocol.slow_ranks import WINDOW, SlowRank

COMPUTES, WAITS = 0.25, 3.0


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(own_time, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def run(self, model: torch.nn.Module) -> None:
        """A step: computes, and then waits for others."""
        self.now += COMPUTES
        model(torch.ones(1, 2)).sum().backward()
        self.now += WAITS


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def model_of() -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
    model[0].requires_grad_(False)  # its gradient never comes
    return model


def step_of(number: int, accumulate: int = 1, tokens: int = 50, **given: Any) -> StepInfo:
    mine, other = np.array([tokens, 900]), np.array([5, 5])
    columns = dict.fromkeys(StepTotals.__dataclass_fields__, mine)
    values = {**columns, "samples": other, "cost": np.array([100.0, 900.0])}
    values["by_source"] = np.zeros((2, 0), np.int64)
    return StepInfo(
        epoch=0,
        step=number,
        rank=0,
        world_size=2,
        indices=None,
        loss_scale=1.0,
        accumulate=accumulate,
        totals=StepTotals(**values),
        **{"filler": False, **given},
    )


def expected(seconds: float) -> tuple[int, int]:
    return round(1000 * np.log(seconds * 1e9)), round(1000 * np.log(seconds * 1e9 / 100))


@pytest.mark.parametrize(
    ("accumulate", "ahead"),
    [(1, 0), (1, 1), (4, 0), (4, 3)],
    ids=["plain", "one step ahead", "accumulating", "an update at a time"],
)
def test_own_time_leaves_out_waits(accumulate: int, ahead: int, clock: Clock) -> None:
    own, model = OwnTime(), model_of()
    own.watch(model)
    taken = 0
    for number in range(2 * WINDOW):
        while taken <= number + ahead and (ahead != 3 or not number % 4 or taken % 4):
            own.handed_out(step_of(taken, accumulate))
            taken += 1
        clock.run(model)
    # Updates that are taken before the first is run have what their steps wait for in between.
    seconds = COMPUTES + (3 / 4 * WAITS if ahead == 3 else 0)
    assert own.pace.block >= 2 * WINDOW // 25 - 1
    assert own.pace[1:] == (*expected(seconds), 0)


def test_steps_of_unknown_cost_and_those_without_a_backward_pass_are_not_timed(
    clock: Clock,
) -> None:
    for given in ({"filler": True}, {"tokens": 5}):
        own, model = OwnTime(), model_of()
        own.watch(model)
        for number in range(2 * WINDOW):
            own.handed_out(step_of(number, **given))
            clock.run(model)
        assert own.pace.block > 0
        assert own.pace.time == 0
    own.watch(other := model_of())
    for number in range(2 * WINDOW):
        own.handed_out(step_of(number))
        clock.run(model)  # is watched no more
    assert own.pace.time == 0
    for number in range(2 * WINDOW):
        own.handed_out(step_of(number))
        clock.run(other)
    assert own.pace[1:] == (*expected(COMPUTES), 0)


def test_watching_changes_no_gradient_and_keeps_neither_loader_nor_model(clock: Clock) -> None:
    plain, watched = model_of(), model_of()
    own = OwnTime()
    own.watch(watched)
    copied = copy.deepcopy(watched)
    for number in range(3):
        own.handed_out(step_of(number))
        for model in (plain, watched, copied):
            clock.run(model)
    gradients = [
        [None if each.grad is None else each.grad.tolist() for each in model.parameters()]
        for model in (plain, watched, copied)
    ]
    assert gradients[0] == gradients[1] == gradients[2]
    this = weakref.ref(own)
    del own
    gc.collect()
    assert this() is None
    clock.run(watched)
    own = OwnTime()
    own.watch(watched)
    del watched, model
    gc.collect()
    own.handed_out(step_of(0))
    assert own._stamp is None
    own.watch(torch.nn.Linear(1, 1).requires_grad_(False))


def test_a_slow_rank_is_said_once_and_once_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notices = Notices(FixedBatch(1), "error")
    one, two = SlowRank(5, 0.124, 1, 4_210), SlowRank(3, 0.08, 1, 4_300)
    for ranks in ((), (one,), (one._replace(share=0.2), two), (two,), (two,)):
        notices.slow(ranks, step_of(4_321))
    needs = "more time than its work explains, since step"
    assert [record.getMessage() for record in caplog.records] == [
        f"rank 5 needs 12% {needs} 4,210 of epoch 1; see docs/diagnose.md",
        f"rank 3 needs 8% {needs} 4,300 of epoch 1; see docs/diagnose.md",
        "rank 5 needs no more time than its work explains again, at step 4,321 of epoch 0",
    ]
