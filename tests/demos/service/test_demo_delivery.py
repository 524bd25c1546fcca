"""What the demo checks: it must agree with a run that is right, and find every kind of wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import evenstep.service as es
from evenstep.errors import InvariantError
from evenstep_demos.service.delivery import Received, StepRecord, check_delivery
from evenstep_demos.service.result import figures, table_of
from evenstep_demos.service.sources import StoredSources
from evenstep_demos.service.strategies import (
    RANKS,
    SAMPLES_PER_STEP,
    STRATEGIES,
    job_of,
    tokens_of,
)
from evenstep_demos.service.trainer import received

STEPS = 3
Records = list[list[StepRecord]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredSources:
    folder = tmp_path_factory.mktemp("sources")
    samples = {f"s{n}": 20 + 9 * n for n in range(5)}
    for n, count in enumerate(samples.values()):
        lines = [
            json.dumps({"text": f"{n} {k} " + "x" * (7 * k * n % 90)}) + "\n" for k in range(count)
        ]
        (folder / f"{n:03}.jsonl").write_text("".join(lines))
    return StoredSources(folder=folder, samples=samples)


@pytest.fixture(scope="module", params=STRATEGIES)
def run(request: pytest.FixtureRequest, stored: StoredSources) -> tuple[list[Any], Records]:
    """Plans and records of a run without training."""
    job = job_of(stored, request.param, steps=STEPS, seed=0)
    records: Records = []
    with es.start(job, backend="local") as service:
        for rank in range(RANKS):
            client = service.client(rank)
            records.append([record(rank, *next(client)) for _ in range(STEPS)])
        return [service.plan(step) for step in range(STEPS)], records


def record(rank: int, micro_batches: list[Any], step: es.ServiceStep) -> StepRecord:
    return StepRecord(
        micro_batches=[received(batch) for batch in micro_batches],
        wait=0.1 * (rank + 1),
        processor=1.0 + (rank == 2),
        loss=2.0 * sum(step.supervised),
        supervised=sum(step.supervised),
    )


def test_a_run_that_is_right_is_found_right(
    run: tuple[list[Any], Records], stored: StoredSources
) -> None:
    plans, records = run
    tokens = check_delivery(plans, records, lambda name: tokens_of(stored.row(name))["input_ids"])
    assert tokens == sum(int(plan.tokens.sum()) for plan in plans)


def damaged(records: Records, change: Callable[[Received], Received]) -> Records:
    """With the first micro-batch of rank 3's second step changed."""
    step = records[3][1]
    first, *rest = step.micro_batches
    new = dataclasses.replace(step, micro_batches=[change(first), *rest])
    return [*records[:3], [records[3][0], new, *records[3][2:]]]


DAMAGES: dict[str, Callable[[Records], Records]] = {
    "is on no rank": lambda records: damaged(records, lambda part: part[:-1]),
    "not those stored": lambda records: damaged(records, lambda part: part ^ [0, 0, 1]),
    "not in it": lambda records: damaged(records, lambda part: part + np.int32([1000, 0, 0])),
    # Both context-parallel ranks with the same shard.
    "on no rank, or on several": lambda records: damaged(
        records, lambda _: records[2][1].micro_batches[0]
    ),
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
    plans, records = run
    last = SAMPLES_PER_STEP - 1
    lost = dataclasses.replace(plans[0], samples=plans[0].samples[np.r_[1 : last + 1, last]])
    with pytest.raises(InvariantError, match="was not placed once"):
        check_delivery([lost, *plans[1:]], records, lambda name: np.empty(0, int))


def test_figures_are_sums_over_steps(run: tuple[list[Any], Records]) -> None:
    plans, records = run
    found = figures(plans, records)
    worst = sum(plan.cost_after.sum(axis=1).max() for plan in plans)
    mean = sum(plan.cost_after.sum(axis=1).mean() for plan in plans)
    assert found["planned"] == pytest.approx(worst / mean)
    assert found["measured"] == pytest.approx(2.0 / 1.25)
    assert found["slowest_share"] == pytest.approx(2 / 5)
    assert found["wait_median"] == pytest.approx(0.4)
    assert found["first_loss"] == found["last_loss"] == pytest.approx(2.0)
    assert found["samples"] == STEPS * SAMPLES_PER_STEP
    result = {"runs": {"vanilla": found, "balanced": found}, "data": {"sources": 5}}
    table = table_of({**result, "steps": STEPS, "tokens_checked": 1234})
    assert f"{found['planned']:.3f}" in table
    assert "(1,234 tokens)" in " ".join(table.split())


def test_both_strategies_draw_the_same_samples(stored: StoredSources) -> None:
    plans = []
    for name in STRATEGIES:
        job = job_of(stored, name, steps=STEPS, seed=0)
        with es.start(job, backend="local") as service:
            plans.append([service.plan(step) for step in range(STEPS)])
    for vanilla, balanced in zip(*plans):
        assert vanilla.samples == balanced.samples
        assert balanced.imbalance < vanilla.imbalance
