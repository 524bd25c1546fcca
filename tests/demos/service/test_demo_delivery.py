"""What the demo checks: it must agree with a run that is right, and find every kind of wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import evenstep.service as es
from evenstep.errors import InvariantError
from evenstep_demos.service.delivery import (
    ReceivedMicroBatch,
    StepRecord,
    check_delivery,
    check_drawn,
)
from evenstep_demos.service.options import RANKS, ServiceDemoOptions
from evenstep_demos.service.result import ServedRun, SourceDraws, figures
from evenstep_demos.service.sources import StoredSources, write_sources
from evenstep_demos.service.strategies import TEXT_RUNS, follow_losses, text_job, tokens_of
from evenstep_demos.service.trainer import micro_batch_of

STEPS = 3
Records = dict[int, list[StepRecord]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredSources:
    rows = (
        (f"s{n}", [{"text": f"{n} {k} " + "x" * (7 * k * n % 90)} for k in range(20 + 9 * n)])
        for n in range(5)
    )
    return write_sources(tmp_path_factory.mktemp("sources"), rows, "made up", {})


@pytest.fixture(scope="module", params=TEXT_RUNS)
def run(request: pytest.FixtureRequest, stored: StoredSources) -> tuple[list[Any], Records]:
    """Plans and records of a run without training."""
    options = ServiceDemoOptions(samples_per_step=16, max_length=128, steps=STEPS)
    job = text_job(stored, options, request.param)
    records: Records = {}
    with es.start(job, backend="local") as service:
        for rank in range(RANKS):
            client = service.client(rank)
            records[rank] = [record(rank, *next(client)) for _ in range(STEPS)]
        return [service.plan(step) for step in range(STEPS)], records


def record(rank: int, micro_batches: list[Any], step: es.ServiceStep) -> StepRecord:
    return StepRecord(
        step=step.step,
        micro_batches=[micro_batch_of(b, t) for b, t in zip(micro_batches, step.samples)],
        wait=0.1 * (rank + 1),
        processor={"backbone": 1.0 + (rank == 2)},
        loss=2.0 * sum(step.supervised),
        supervised=sum(step.supervised),
        seconds=1.0,
    )


def test_a_run_that_is_right_is_found_right(
    run: tuple[list[Any], Records], stored: StoredSources
) -> None:
    plans, records = run
    checked = check_delivery(plans, records, lambda name: tokens_of(stored.row(name))["input_ids"])
    assert (checked.steps, checked.samples, checked.carried) == (STEPS, STEPS * 16, 0)
    assert checked.tokens == sum(int(plan.tokens.sum()) for plan in plans)


def damaged(records: Records, change: Callable[[ReceivedMicroBatch], Any]) -> Records:
    """With the first micro-batch of rank 3's second step changed."""
    step = records[3][1]
    first, *rest = step.micro_batches
    new = dataclasses.replace(step, micro_batches=[change(first), *rest])
    return {**records, 3: [records[3][0], new, *records[3][2:]]}


def without_last_token(part: ReceivedMicroBatch) -> ReceivedMicroBatch:
    return dataclasses.replace(
        part, document=part.document[:-1], position=part.position[:-1], token=part.token[:-1]
    )


DAMAGES: dict[str, Callable[[Records], Records]] = {
    "is on no rank": lambda records: damaged(records, without_last_token),
    "not those stored": lambda records: damaged(
        records, lambda part: dataclasses.replace(part, token=part.token ^ 1)
    ),
    "not in it": lambda records: damaged(
        records, lambda p: dataclasses.replace(p, document=p.document + len(p.samples))
    ),
    "rank 3 got other samples": lambda records: damaged(
        records, lambda part: dataclasses.replace(part, samples=part.samples[::-1])
    ),
    # Both context-parallel ranks with the same shard.
    "on no rank, or on several": lambda records: damaged(
        records, lambda _: records[2][1].micro_batches[0]
    ),
    r"ranks \[0, 1, 2, 3\]": lambda records: {r: of for r, of in records.items() if r != 1},
}


@pytest.mark.parametrize("words", DAMAGES)
def test_a_damaged_delivery_is_found(
    run: tuple[list[Any], Records], stored: StoredSources, words: str
) -> None:
    plans, records = run
    with pytest.raises(InvariantError, match=words):
        check_delivery(
            plans, DAMAGES[words](records), lambda name: tokens_of(stored.row(name))["input_ids"]
        )


def test_a_sample_that_no_plan_places_is_found(run: tuple[list[Any], Records]) -> None:
    plans, _ = run
    lost = dataclasses.replace(plans[0], samples=plans[0].samples[np.r_[1:16, 15]])
    with pytest.raises(InvariantError, match="was not placed once"):
        check_drawn([lost, *plans[1:]])


def test_figures_are_sums_over_steps(run: tuple[list[Any], Records]) -> None:
    plans, records = run
    found = figures(ServedRun(plans=plans, records=records))
    worst = sum(plan.cost_after.sum(axis=1).max() for plan in plans)
    mean = sum(plan.cost_after.sum(axis=1).mean() for plan in plans)
    assert found["planned"]["backbone"] == pytest.approx(worst / mean)
    assert found["measured"]["backbone"] == pytest.approx(2.0 / 1.25)
    assert found["slowest"] == pytest.approx(2.0 * STEPS)
    assert found["processor"] == pytest.approx(5.0 * STEPS)
    assert found["slowest_share"] == pytest.approx(2 / 5)
    assert found["wait_median"] == pytest.approx(0.4)
    assert found["first_loss"] == found["last_loss"] == pytest.approx(2.0)
    assert found["samples"] == STEPS * 16
    assert found["tokens"] == sum(plan.samples.lengths["supervised"].sum() for plan in plans)


def test_draws_are_held_against_the_weights_of_each_step(run: tuple[list[Any], Records]) -> None:
    plans, _ = run
    draws = SourceDraws.of(plans)
    assert draws.drawn.sum() == STEPS * 16
    assert draws.expected.sum() == pytest.approx(STEPS * 16)
    assert draws.first.sum() == draws.last.sum() == pytest.approx(1.0)
    assert draws.first[4] > draws.last[4]  # the largest source gets less as training goes on
    assert draws.furthest == pytest.approx(abs(draws.drawn - draws.expected).max())


def test_both_strategies_draw_the_same_samples(stored: StoredSources) -> None:
    options = ServiceDemoOptions(samples_per_step=16, max_length=128, steps=STEPS)
    plans = []
    for name in TEXT_RUNS:
        with es.start(text_job(stored, options, name), backend="local") as service:
            plans.append([service.plan(step) for step in range(STEPS)])
    for vanilla, balanced in zip(*plans):
        assert vanilla.samples == balanced.samples
        assert balanced.imbalance < vanilla.imbalance


def test_sources_with_a_loss_above_the_mean_gain_weight() -> None:
    weights = follow_losses(
        {"a": 1.0, "b": 1.0, "c": 1.0}, {"loss_by_source": {"a": 3.0, "b": 1.0}}
    )
    assert weights["a"] > weights["c"] == 1.0 > weights["b"] > 0
