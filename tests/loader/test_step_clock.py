"""How long steps take tells what tokens and pairs of them cost, on whatever rank was slowest."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import evenstep
from evenstep.batch.step_info import StepInfo
from evenstep.cost import FittedCost
from evenstep.loader import step_clock
from evenstep.loader.step_clock import StepClock
from evenstep.plan.policy import Policy
from evenstep.tools.simulate import deal
from evenstep.tools.simulate.run import run_epoch

MAX_TOKENS, RANKS = 16_384, 4
TRUTH = FittedCost(per_group=2e-3, per_token=6e-6, per_pair=6e-6 / 12_000)
"""Attention takes as long as all else at 12,000 tokens."""
POLICIES = {
    "padded": evenstep.Even(MAX_TOKENS),
    "packed": evenstep.Even(MAX_TOKENS, packed=True),
    "updates": evenstep.Even(MAX_TOKENS, packed=True, sync="update"),
}


class Clock:
    """A clock that stands still but for what a test adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def planned(policy: Policy, accumulate: int = 1, count: int = 60_000) -> list[StepInfo]:
    """Steps of an epoch whose samples are of 20 to 8,000 tokens."""
    lengths = np.exp(np.random.default_rng(1).normal(6, 1.2, count)).astype(np.int64)
    shares = deal(count, RANKS)
    epoch = run_epoch(
        policy,
        [lengths.clip(20, 8000)[share] for share in shares],
        identities=shares,
        accumulate=accumulate,
    )
    steps = epoch.ranks[0].steps
    return [
        StepInfo(
            epoch=0,
            step=number,
            rank=0,
            world_size=RANKS,
            filler=False,
            indices=None,
            totals=step.totals,
            loss_scale=1.0,
            accumulate=accumulate,
            ends_update=(number + 1) % accumulate == 0 or number + 1 == len(steps),
            sync=policy.sync,
        )
        for number, step in enumerate(steps)
    ]


def costs_of(step: StepInfo, cost: FittedCost) -> np.ndarray:
    """[ranks]"""
    tokens = step.totals.padded_tokens
    if (step.totals.padded_tokens == step.totals.tokens).all():
        pairs = tokens * step.totals.length_mean
    else:
        pairs = tokens**2 / step.totals.samples
    return cost.per_group + cost.per_token * tokens + cost.per_pair * pairs


def train(clock: Clock, told: StepClock, steps: list[StepInfo]) -> Iterator[StepInfo]:
    """Steps as a trainer gets them, each as long as its slowest rank by the truth: some 100 times
    as long before a checkpoint, and all with noise."""
    noise = np.random.default_rng(0)
    update = np.zeros(RANKS)
    for number, step in enumerate(steps):
        told.asked()
        clock.now += 0.3 if number % 50 == 7 else 0.0  # for data
        yield told.handed_out(step)
        update += costs_of(step, TRUTH)
        if step.sync == "step" or step.ends_update:
            clock.now += update.max() * noise.normal(1, 0.01)
            update[:] = 0
        clock.now += 5.0 if number % 90 == 5 else 0.0


@pytest.mark.parametrize("name", POLICIES)
def test_what_tokens_and_pairs_cost_is_found_whichever_rank_was_slowest(
    name: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    policy = POLICIES[name]
    told = StepClock(policy, rank=0)
    with caplog.at_level(logging.WARNING, "evenstep"):
        seen = list(train(clock, told, planned(policy, 4 if policy.sync == "update" else 1)))
    assert told.fitted is not None
    cost = told.fitted.cost
    assert cost.per_token == pytest.approx(TRUTH.per_token, rel=0.1)
    assert cost.per_pair / cost.per_token == pytest.approx(1 / 12_000, rel=0.15)
    if policy.sync == "step":
        for step in seen[-20:]:
            true = costs_of(step, TRUTH)
            assert step.imbalance_measured == pytest.approx(true.max() / true.mean(), abs=0.02)
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == 1
        named = dict(re.findall(r"(per_\w+)=([\d.e-]+)", said[0]))
        given = FittedCost(**{key: float(value) for key, value in named.items()})
        assert given.per_pair / given.per_token == pytest.approx(1 / 12_000, rel=0.2)


def test_the_right_cost_is_not_warned_of(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    policy = evenstep.Even(MAX_TOKENS, cost=TRUTH)
    with caplog.at_level(logging.WARNING, "evenstep"):
        list(train(clock, StepClock(policy, rank=0), planned(policy)))
    assert not caplog.records


def test_times_that_have_nothing_to_do_with_tokens_tell_nothing(clock: Clock) -> None:
    policy = POLICIES["padded"]
    told, noise = StepClock(policy, rank=0), np.random.default_rng(0)
    for step in planned(policy):
        told.asked()
        assert told.handed_out(step).imbalance_measured is None
        clock.now += noise.uniform(0.01, 1.0)


def test_on_a_device_events_are_read_when_they_have_happened(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Event:
        """Happens on a device that is three steps behind."""

        made: list[Event] = []  # noqa: RUF012

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing
            self.made.append(self)

        def record(self) -> None:
            self.at = device[0]

        def query(self) -> bool:
            return self.made.index(self) + 3 < len(self.made)

        def elapsed_time(self, end: Event) -> float:
            assert self.query()
            assert end.query()
            return 1e3 * (end.at - self.at)

    device = [0.0]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    policy = POLICIES["packed"]
    told = StepClock(policy, rank=0)
    for step in planned(policy):
        told.asked()
        told.handed_out(step)
        device[0] += float(costs_of(step, TRUTH).max())  # the host's clock stands still
    assert told.fitted is not None
    cost: Any = told.fitted.cost
    assert cost.per_pair / cost.per_token == pytest.approx(1 / 12_000, rel=0.15)
