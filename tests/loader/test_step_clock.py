"""How long steps take tells what tokens, pairs of them and patches cost, on whatever rank was
slowest: also on a single rank, of several micro-batches, and where ranks wait at updates."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import evenstep
from evenstep.batch.step_info import RankLoads, StepInfo
from evenstep.cost import FittedCost, VisionLanguageCost
from evenstep.loader import step_clock
from evenstep.loader.step_clock import StepClock
from evenstep.plan.policy import Policy
from evenstep.tools.simulate import deal
from evenstep.tools.simulate.run import run_epoch

MAX_TOKENS, RANKS = 16_384, 4
PAIR, PATCH = 1 / 17_000, 0.4
TRUTH = FittedCost(per_group=2e-3, per_token=6e-6, per_pair=6e-6 * PAIR)
"""Attention takes as long as all else at 17,000 tokens."""
FAR = FittedCost(per_group=0.0, per_token=1.0, per_pair=1 / 4_000)
POLICIES = {
    "packed": evenstep.Even(MAX_TOKENS, packed=True),
    "updates": evenstep.Even(MAX_TOKENS, packed=True, sync="update"),
    "far": evenstep.Even(MAX_TOKENS, cost=FAR),
    "micro-batches": evenstep.WorkloadPacking(MAX_TOKENS, micro_batches=3, cost=FAR),
}
TOWER = FittedCost(per_group=0.0, per_token=3.0, per_pair=3.0 / 2_000)
"""Whose attention takes as long as all else in images of 2,000 patches."""
IMAGES = {
    "of two": evenstep.Even(
        MAX_TOKENS,
        max_patches=16_384,
        cost=VisionLanguageCost(
            language=FittedCost(per_group=0, per_token=1, per_pair=2.5e-5), vision=TOWER
        ),
    ),
}


class Clock:
    """A clock that stands still but for what a test adds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(step_clock, "time", SimpleNamespace(perf_counter=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@functools.cache
def planned(
    policy: Policy, accumulate: int = 1, count: int = 15_000, ranks: int = RANKS
) -> list[StepInfo]:
    """Steps of an epoch whose samples are of 20 to 8,000 tokens, two in three with an image of 64
    to 4,000 patches where those count, which add a quarter as many tokens."""
    draw = np.random.default_rng(1)
    rows = np.zeros((4, count), np.int64)
    rows[0] = np.exp(draw.normal(6, 1.2, count)).clip(20, 8000)
    if policy.counts_patches:
        rows[1] = np.exp(draw.normal(6, 1, count)).clip(64, 4000) * (draw.random(count) < 2 / 3)
        rows[2], rows[3] = rows[1] > 0, rows[1] ** 2
        rows[0] += rows[1] // 4
    shares = deal(count, ranks)
    epoch = run_epoch(
        policy,
        [rows[:, share] for share in shares],
        identities=shares,
        accumulate=accumulate,
    )
    steps = [step.totals for step in epoch.ranks[0].steps]
    loads: list[RankLoads | None] = [None] * len(steps)
    if policy.sync == "update":
        for begin in range(0, len(steps), accumulate):
            of_update = [RankLoads.of(t, packed=True) for t in steps[begin : begin + accumulate]]
            summed = functools.reduce(RankLoads.__add__, of_update)
            loads[begin : begin + accumulate] = [summed] * len(of_update)
    return [
        StepInfo(
            epoch=0,
            step=number,
            rank=0,
            world_size=ranks,
            filler=False,
            indices=None,
            totals=totals,
            loss_scale=1.0,
            loss_scales=(1.0,) * policy.micro_batches if policy.micro_batches > 1 else (),
            accumulate=accumulate,
            ends_update=(number + 1) % accumulate == 0 or number + 1 == len(steps),
            loads=loads[number],
        )
        for number, totals in enumerate(steps)
    ]


def costs_of(step: StepInfo, policy: Policy) -> np.ndarray:
    """[ranks] seconds by the truth."""
    tokens = step.totals.padded_tokens
    longest = step.totals.length_mean if policy.packed else tokens / step.totals.samples
    pairs = tokens * longest
    patches = step.totals.patches
    if isinstance(policy.cost, VisionLanguageCost):
        patches = step.totals.vision_cost / TOWER.per_token
    groups = policy.micro_batches
    tokens = tokens + PATCH * patches
    return TRUTH.per_group * groups + TRUTH.per_token * tokens + TRUTH.per_pair * pairs


def train(
    clock: Clock, told: StepClock, steps: list[StepInfo], policy: Policy, noise: float = 0.02
) -> Iterator[StepInfo]:
    """Steps as a trainer gets them, each as long as its slowest rank by the truth, with noise; one
    in a hundred takes five times as long, and some wait for data."""
    draw = np.random.default_rng(2)
    update = np.zeros(len(steps[0].totals.samples))
    for number, step in enumerate(steps):
        told.note_request()
        clock.now += 0.3 if number % 50 == 7 else 0.0  # for data
        yield told.handed_out(step)
        update += costs_of(step, policy)
        if step.ends_wait:
            outlier = 5 if draw.random() < 0.01 else 1
            clock.now += update.max() * draw.normal(1, noise) * outlier
            update[:] = 0


CASES = {
    "updates": (POLICIES["updates"], RANKS, 4, 60_000),
    "micro-batches": (POLICIES["micro-batches"], RANKS, 1, 90_000),
    "one rank, images": (IMAGES["of two"], 1, 1, 6_000),
}
"""Policy, ranks, steps of an update, samples."""


@pytest.mark.parametrize("name", CASES)
def test_what_tokens_pairs_and_patches_cost_is_found_whichever_rank_was_slowest(
    name: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    policy, ranks, accumulate, count = CASES[name]
    told = StepClock(policy, rank=0)
    steps = planned(policy, accumulate, count, ranks)
    with caplog.at_level(logging.WARNING, "evenstep"):
        seen = list(train(clock, told, steps, policy))
    assert told.fitted is not None
    pair, patch = told.fitted.ratios
    assert told.fitted.per_token == pytest.approx(TRUTH.per_token, rel=0.1)
    assert pair == pytest.approx(PAIR, rel=0.15)
    assert patch == (pytest.approx(PATCH, rel=0.15) if policy.counts_patches else 0)
    for step in seen[-20:]:
        waits = step.loads or step.totals
        assert (step.imbalance_measured == 1) == (len(waits.cost) == 1)
    if accumulate == 1:
        for step in seen[-60:-40]:  # before the end, where ranks run out
            true = costs_of(step, policy)
            assert step.imbalance_measured == pytest.approx(true.max() / true.mean(), rel=0.03)


def test_one_warning_names_a_cost_that_makes_steps_more_even(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    policy = POLICIES["far"]
    with caplog.at_level(logging.WARNING, "evenstep"):
        list(train(clock, StepClock(policy, rank=0), planned(policy), policy))
    (record,) = caplog.records
    assert "% uneven in time: attention takes as long as all else at" in record.getMessage()
    cost: Any = record.args[-1]  # type: ignore[index]
    assert cost.per_pair / cost.per_token == pytest.approx(PAIR, rel=0.2)


def test_times_that_have_nothing_to_do_with_tokens_tell_nothing(clock: Clock) -> None:
    policy = POLICIES["far"]
    told, noise = StepClock(policy, rank=0), np.random.default_rng(0)
    for step in planned(policy):
        told.note_request()
        assert told.handed_out(step).imbalance_measured is None
        clock.now += noise.uniform(0.01, 1.0)
