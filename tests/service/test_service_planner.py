"""Plans follow from the job and from what was reported; every error reaches every client."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_world import (
    Rows,
    balanced,
    comparable,
    failing,
    job_of,
    rows,
    sources,
    steps_of,
    striped,
    tokens_of_row,
)

import evenstep.service as es
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.mixture import FeedbackSchedule
from evenstep.service.planner.trainer_reports import Signals
from evenstep.strategy import (
    Assignment,
    BufferedMetadata,
    DGraph,
    LoadingPlan,
    SampleTable,
    to_json,
)
from evenstep.strategy.mesh import ClientPlaceTree


def errors_of(
    job: es.Job, start: Any, loaders: int = 1, *, fill: bool = False
) -> list[tuple[int, str]]:
    """[clients] the step at which each failed, and the error."""
    found = []
    with start(job, loaders=striped(job, loaders, 4)) as service:
        for loader in service._loaders if fill else ():
            for number, _ in enumerate(job.sources):
                service._planner._metadata.ahead(number, 0, 1)
            for name in loader.sources:
                loader._buffers[name].fill_chunk()
        for rank in range(len(job.tree)):
            client = service.client(rank)
            with pytest.raises(EvenstepError) as caught:
                steps_of(client)
            with pytest.raises(type(caught.value)):
                next(client)
            found.append((client.step, str(caught.value)))
    return found


def test_a_transform_that_raises_reaches_every_client_by_source_shard_and_index(
    tmp_path: Path, start: Any
) -> None:
    given = sources(tmp_path, transform=failing)
    job = job_of(tmp_path, sources=given, mesh=es.Mesh(DP=2, CP=2))
    first = errors_of(job, start)
    assert len(set(first)) == 1
    step, text = first[0]
    assert "failing" in text
    assert "a bad row" in text
    assert any(f"{name}[" in text for name in ("code", "web", "books"))
    assert "ValueError" in text
    assert step < 10
    assert errors_of(job, start, loaders=3) == errors_of(job, start, loaders=8) == first
    assert errors_of(job, locally) == first
    # Loaders that have read further know of it earlier, but it is raised no earlier.
    for loaders in (1, 8):
        assert errors_of(job, locally, loaders, fill=True) == first


def locally(job: es.Job, **options: Any) -> Any:
    return es.start(job, backend="local", **options)


def test_an_empty_sample_is_refused_by_name(tmp_path: Path, start: Any) -> None:
    given = es.Source("empty", [{"input_ids": [1]}, {"input_ids": []}])
    job = job_of(tmp_path, sources=[given])
    assert all("sample empty[0][1]" in text for _, text in errors_of(job, start))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples_per_step": 3, "mesh": es.Mesh(DP=4)}, "draw more samples"),
        ({"samples_per_step": 60, "max_tokens": 80}, "more than it holds"),  # and they pile up
        ({"max_tokens": 20}, r"\w+\[\d+\]\[\d+\]"),
    ],
)
def test_a_step_of_too_few_or_too_large_samples_is_refused(
    options: dict[str, Any], words: str, tmp_path: Path, start: Any
) -> None:
    with start(job_of(tmp_path, **options)) as service, pytest.raises(EvenstepError, match=words):
        steps_of(service.client(0), 6)


# Strategies


def no_plan(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("DP")


def nothing_drawn(graph: Any, mesh: Any, step: int) -> Any:
    ones = np.ones(2, np.int64)
    table = SampleTable(("code",), 0 * ones, ones, ones, ones, {"text": ones})
    return DGraph.of(table, mesh).distribute("DP").plan()


def unknown_axis(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("EP").plan()


def raising(graph: Any, mesh: Any, step: int) -> Any:
    return {}["cost"]


def losing(graph: Any, mesh: Any, step: int) -> Any:
    plan = balanced(graph, mesh, step)
    rows = np.arange(len(plan) - 1)
    where = rows % 2, rows // 2 % 2, rows // 4
    assignment = Assignment.of(*where, buckets=2, micro_batches=2)
    return replace(plan, samples=plan.samples[rows], costs=plan.costs[rows], assignment=assignment)


def other_step(graph: Any, mesh: Any, step: int) -> Any:
    return replace(balanced(graph, mesh, step), step=step + 1)


def unfetched(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("WORLD").broadcast_at("TP", stages="first").plan()


def bad_weights(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix({"code": -1.0 if step == 2 else 1.0}).distribute("DP").plan()


@pytest.mark.parametrize(
    ("strategy", "step", "words"),
    [
        (no_plan, 0, "let it return graph.plan()"),
        (nothing_drawn, 0, "drawn nothing of the job's sources in step 0"),
        (unknown_axis, 0, "'EP'"),
        (raising, 0, "raised KeyError in step 0: 'cost'"),
        (losing, 0, "has 15 samples, and not the 16 that were drawn"),
        (other_step, 0, "returned a plan of step 1"),
        (unfetched, 0, "no rank fetches bucket"),
        (bad_weights, 2, "code=-1.0"),
    ],
)
def test_a_strategy_that_gives_no_plan_of_the_step_is_refused(
    tmp_path: Path, start: Any, strategy: Any, step: int, words: str
) -> None:
    import re

    job = job_of(tmp_path, strategy=strategy, mesh=es.Mesh(PP=2, DP=2))
    for at, text in errors_of(job, start):
        assert at == step
        assert re.search(words, text), text


def test_a_strategy_may_change_weights_axes_and_methods_from_step_to_step(
    tmp_path: Path, start: Any
) -> None:
    def strategy(graph: Any, mesh: Any, step: int) -> Any:
        only = ("code", "web", "books")[step % 3]
        return graph.mix({only: 1.0}).distribute(("DP", "CP")[step % 2]).plan()

    with start(job_of(tmp_path, strategy=strategy, mesh=es.Mesh(DP=2, CP=2))) as service:
        taken = steps_of(service.client(3), 6)
    for _, step in taken:
        assert {i.source for ids in step.sample_ids for i in ids} == set(step.weights)
        assert step.axis == ("DP", "CP")[step.step % 2]


@pytest.mark.backends("local", "processes")
def test_what_a_constructor_cannot_build_reaches_clients_of_others(
    tmp_path: Path, start: Any
) -> None:
    """Also where the next steps are planned already."""
    job = job_of(tmp_path, collate=collating_but_not_1004)
    with start(job) as service:
        service.plan(30)
        clients = [service.client(rank) for rank in range(2)]
        failed: dict[int, tuple[int, str]] = {}
        for _ in range(30):
            for rank in set(range(2)) - set(failed):
                try:
                    next(clients[rank])
                except EvenstepError as error:
                    failed[rank] = clients[rank].step, str(error)
    (first, text), (second, same) = sorted(failed.values())
    assert "1004 is not for me" in text
    assert "micro-batch" in text
    assert same == text
    # What was on its way still comes, and the other rank may be a step ahead.
    assert 0 <= second - first <= job.memory.prefetch + 2


def collating_but_not_1004(samples: Any) -> Any:
    for sample in samples:
        if sample["id"] == 1004:
            raise ValueError("1004 is not for me")
    return list(samples)


def test_the_last_plans_are_kept(tmp_path: Path, start: Any) -> None:
    job = job_of(tmp_path, plans_kept=2)
    with start(job) as service:
        service.plan(5)
        with pytest.raises(ConfigurationError, match="plan of step 1 is not kept, those from"):
            service.plan(1)
        with pytest.raises(ConfigurationError, match="state before step 1 is not there"):
            service.state_dict(1)


def test_a_planner_needs_nothing_but_metadata(tmp_path: Path) -> None:
    """It makes the same plans from an array of lengths as from the loaders' buffers."""
    job = job_of(tmp_path)
    with es.start(job, backend="local") as service:
        plans = [to_json(service.plan(step)) for step in range(5)]
        parts = [service._planner._metadata.ahead(number, 0, 60) for number in range(3)]
    planner = es.Planner(job, BufferedMetadata(SampleTable.concatenate(parts)))
    assert [to_json(planner.plan(step)) for step in range(5)] == plans


class GivesUp:
    """Balances every step except one, where it raises after it has drawn."""

    def __init__(self, step: int | None) -> None:
        self.step = step

    def __call__(self, graph: Any, mesh: Any, step: int) -> Any:
        plan = balanced(graph, mesh, step)
        if step == self.step:
            raise RuntimeError("not this one")
        return plan


def test_the_state_before_a_step_that_failed_draws_it_again(tmp_path: Path, start: Any) -> None:
    """What the step had drawn is in no state, so nothing is lost when the strategy is fixed."""
    with start(job_of(tmp_path, strategy=GivesUp(None))) as service:
        expected = [to_json(service.plan(step)) for step in range(5)]
    with start(job_of(tmp_path, strategy=GivesUp(3))) as service:
        with pytest.raises(EvenstepError, match="not this one"):
            service.plan(4)
        states = [json.loads(json.dumps(service.state_dict(step))) for step in (2, 3)]
    for step, state in zip((2, 3), states):
        job = job_of(tmp_path, strategy=GivesUp(None))
        with start(job, state=state) as service:
            assert [to_json(service.plan(s)) for s in range(step, 5)] == expected[step:]


def test_a_state_of_the_end_resumes_at_the_end(tmp_path: Path, start: Any) -> None:
    """Also if too few samples are left over for a step: 155 are one more than eleven steps hold."""
    job = job_of(tmp_path, stop="all_exhausted", samples_per_step=14, max_tokens=1000)
    with start(job) as service:
        client = service.client(0)
        assert len(steps_of(client)) == 11
        assert service.status()["planner"]["left_over"] == 1
        state = service.state_dict(client.step)
    with start(job, state=state) as service:
        assert not steps_of(service.client(0))
        assert service.status()["planner"]["left_over"] == 1


# Signals


def test_weights_that_follow_reports_do_not_depend_on_timing(tmp_path: Path, start: Any) -> None:
    schedule = FeedbackSchedule(
        initial={"code": 1.0, "web": 1.0}, function=lambda last, signals: signals["loss_by_source"]
    )
    job = job_of(tmp_path, schedule=schedule, prefetch=1)
    histories = []
    for planned_ahead in (0, 1):
        with start(job) as service:
            clients = [service.client(rank) for rank in range(2)]
            taken: list[Any] = []
            for number in range(8):
                for rank, client in enumerate(clients):
                    step = steps_of(client, 1)
                    taken += comparable(step)
                    service.plan(number + planned_ahead)  # as a client that prefetches does
                    client.report(loss_by_source={"code": 1.0 + number, "web": 3.0 - rank})
            histories.append(taken)
            weights = [dict(service.plan(number).weights) for number in range(8)]
    assert histories[0] == histories[1]
    # A report of step s counts from s + prefetch + 3 on: the mean over both ranks.
    assert [w["code"] for w in weights] == [1, 1, 1, 1, 1, 2, 3, 4]
    assert [w["web"] for w in weights[4:]] == [2.5] * 4


def test_signals_of_ranks_are_averaged_and_those_of_later_steps_win() -> None:
    signals = Signals(prefetch=0, kept=8)
    signals.add(0, 1, {"loss": 2.0, "by": {"a": 1.0}})
    signals.add(0, 0, {"loss": 4.0, "by": {"a": 3.0, "b": 5.0}, "phase": "late"})
    signals.add(1, 0, {"loss": 8.0})
    assert signals.take(2) == {}
    assert signals.take(3) == {"loss": 3.0, "by": {"a": 2.0, "b": 5.0}, "phase": "late"}
    assert signals.to_list() == [[1, 0, {"loss": 8.0}]]
    assert signals.take(4) == {"loss": 8.0}


def test_what_a_restarted_rank_reports_again_does_not_count_twice() -> None:
    def known(signals: Signals) -> None:
        assert signals.repeats(0, 0, {"loss": 0.0})
        assert signals.repeats(1, 0, {"loss": 1.5})  # it may have another value now
        assert not signals.repeats(1, 0, {"grad_norm": 1.0})  # which was not reported before
        assert not signals.repeats(2, 0, {"loss": 9.0})  # no plan has used that of step 2
        assert not signals.repeats(0, 1, {"loss": 0.0})

    reports = [(step, 0, {"loss": float(step)}) for step in (0, 1, 2)]
    signals, again = Signals(prefetch=0, kept=8), Signals(prefetch=0, kept=8)
    for report in reports:
        assert not signals.repeats(*report)
        signals.add(*report)
    signals.take(4)
    known(signals)
    again.load(signals.to_list())  # in a planner that is made again
    for report in reports:
        again.note(*report)
    known(again)


def test_reports_that_are_no_numbers_are_refused(tmp_path: Path, start: Any) -> None:
    with start(job_of(tmp_path)) as service:
        client = service.client(1)
        with pytest.raises(ConfigurationError, match="before its first step"):
            client.report(loss=1.0)
        next(client)
        with pytest.raises(ConfigurationError, match="finite"):
            client.report(loss=float("nan"))
        with pytest.raises(ConfigurationError, match="not made of numbers"):
            client.report(loss=object())
        client.report(loss=np.float32(2.0))


@pytest.mark.parametrize("axis", ["DP", "CP", "WORLD"])
def test_a_mixture_that_ends_in_its_first_step_ends_at_every_axis(
    axis: str, tmp_path: Path, start: Any
) -> None:
    def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
        return graph.mix().distribute(axis).plan()

    given = [es.Source("few", Rows(rows(3, 0, 20)), transform=tokens_of_row)]
    for ranks, ends in [(2, axis == "WORLD"), (4, True)]:
        mesh = es.Mesh(DP=ranks, PP=2)
        job = job_of(tmp_path, sources=given, strategy=strategy, mesh=mesh, stop="all_exhausted")
        with start(job) as service:
            assert (steps_of(service.client(0)) == []) == ends
            assert service.status()["planner"]["left_over"] == 3 * ends
