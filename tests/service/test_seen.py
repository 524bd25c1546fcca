"""The record of what was seen has the samples that trainers got, whatever dies or fails."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from faulty_storage import FaultyStorage
from service_world import Batches, broadcast_at_tp, job_of, steps_of
from test_stored_planner import METADATA, NAMES
from test_stored_planner import job_of as planner_job_of

pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

import evenstep
import evenstep.service as es
from evenstep.cli import main
from evenstep.errors import ConfigurationError
from evenstep.mixture.sample_table import SampleId
from evenstep.service.planner import seen_writer
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.seen import STATE_KEY, SeenStore, begin_run, sample_named
from evenstep.service.planner.store.run_store import RunStore
from evenstep.service.planner.stored_planner import StoredPlanner
from evenstep.strategy import DGraph, LoadingPlan

Row = tuple[int, int, str, int, int]
"""Step, rank, source, shard and index."""
URL, STORE = "faulty://seen", "faulty://store"


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    FaultyStorage.clear()
    yield
    FaultyStorage.clear()


def asked(capsys: Any, url: object, *arguments: str) -> dict[str, Any]:
    """What the command prints."""
    with pytest.raises(SystemExit) as ended:
        main(["service", "seen", str(url), *arguments, "--json"])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    found: dict[str, Any] = json.loads(out)
    return found


def rows_of(url: object, steps: range, runs: int = 1) -> Counter[Row]:
    """The samples of steps by the queries, of the runs that count."""
    store, found = SeenStore(str(url)), Counter[Row]()
    assert len(store.counting) == runs
    for step in steps:
        for row in store.of_step(step):
            if store.counts(row["run"], step):
                found[step, row["rank"], row["source"], row["shard"], row["index"]] += 1
    return found


def got(rank: int, taken: Batches) -> Counter[Row]:
    """What a client of a data-parallel rank got."""
    return Counter(
        (step.step, rank, *identity)
        for _, step in taken
        for identities in step.sample_ids
        for identity in identities
    )


def planned(plans: list[LoadingPlan]) -> Counter[Row]:
    """The samples of plans whose buckets are data-parallel ranks."""
    return Counter(
        (plan.step, bucket, *plan.samples.identity(row))
        for plan in plans
        for row, bucket in enumerate(plan.assignment.bucket.tolist())
        if bucket >= 0
    )


def at_cp(graph: DGraph, mesh: Any, step: int) -> LoadingPlan:
    return graph.mix().distribute("CP").balance("greedy").plan()


POLICY = {"policy": evenstep.Even(64), "strategy": None, "max_tokens": None}


def test_each_sample_is_found_in_the_steps_and_ranks_that_got_it(
    tmp_path: Path, start: Any, capsys: Any
) -> None:
    job = job_of(tmp_path, mesh=es.Mesh(DP=2, TP=2), strategy=broadcast_at_tp, max_tokens=64)
    url = tmp_path / "seen"
    with start(job, logs=es.LogOptions(seen=url)) as service:
        taken = [(dp, steps_of(service.client(DP=dp), 6)) for dp in range(2)]
        rows = sum((got(*each) for each in taken), Counter[Row]())
    assert len(rows) > 70
    assert any(step.carried for _, step in taken[0][1])  # which nobody has seen in that step
    assert len(list(url.glob("run-*/*.parquet"))) == 1
    assert rows_of(url, range(6)) == rows
    for step, rank, *where in list(rows)[::40]:
        answer = asked(capsys, url, "--sample", "/".join(map(str, where)))
        run = SeenStore(url).of_step(0)[0]["run"]
        row = {"run": run, "step": step, "rank": rank, "counts": True}
        found = [{name: each[name] for name in row} for each in answer["seen"]]
        assert found == [row]
        (each,) = asked(capsys, url, "--step", str(step))["seen"]
        assert "/".join(map(str, where)) in each["ranks"][str(rank)]


@pytest.mark.parametrize("options", [{"mesh": es.Mesh(DP=2, CP=2), "strategy": at_cp}, POLICY])
def test_ranks_are_data_parallel_whatever_buckets_are(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    job, url = job_of(tmp_path, **options), tmp_path / "seen"
    with es.start(job, backend="local", logs=es.LogOptions(seen=url)) as service:
        cps = range(job.tree.sizes["CP"])
        clients = [(dp, service.client(DP=dp, CP=cp)) for dp in range(2) for cp in cps]
        rows = sum((got(dp, steps_of(client, 4)) for dp, client in clients), Counter[Row]())
    assert len({rank for _, rank, *_ in rows}) == 2
    assert rows_of(url, range(4)) == rows


def test_a_resumed_job_replaces_the_steps_after_its_state_and_no_others(
    tmp_path: Path, capsys: Any
) -> None:
    url, job, other = tmp_path / "seen", job_of(tmp_path), job_of(tmp_path, seed=8)
    logs = es.LogOptions(seen=url)
    with es.start(job, backend="local", logs=logs) as service:
        first = [service.plan(step) for step in range(10)]
        state = json.loads(json.dumps(service.state_dict(4)))
    with es.start(other, backend="local", logs=logs) as service:  # from the start, by mistake
        service.plan(1)
    changed = job_of(tmp_path, samples_per_step=12)
    with es.start(changed, backend="local", logs=logs, state=state) as service:
        second = [service.plan(step) for step in range(4, 7)]
    plans = first[:4] + second
    assert rows_of(url, range(12), runs=2) == planned(plans)
    answer = asked(capsys, url, "--step", "8", "--all-runs")
    assert [each["counts"] for each in answer["seen"]] == [False]
    assert [(each["first"], each["last"]) for each in answer["recorded"]] == [(0, 3), (4, 6)]
    lost = planned(first[8:9])
    source, shard, index = next(iter(lost))[2:]
    answer = asked(capsys, url, "--sample", f"{source}/{shard}/{index}", "--all-runs")
    assert (8, False) in [(each["step"], each["counts"]) for each in answer["seen"]]
    with pytest.raises(SystemExit):
        main(["service", "seen", str(url), "--step", "8"])
    assert "there is no step 8" in capsys.readouterr().err


@pytest.mark.soak
def test_a_planner_that_is_killed_on_ray_has_all_recorded(tmp_path: Path, ray_of_file: Any) -> None:
    job, url = job_of(tmp_path, stop="repeat"), tmp_path / "seen"
    with es.start(job, name=f"seen-{os.getpid()}", logs=es.LogOptions(seen=url)) as service:
        clients = [service.client(DP=dp) for dp in range(2)]
        taken: list[Batches] = [[], []]
        for step in range(90):
            for client, steps in zip(clients, taken):
                steps.append(next(client))
            if step == 75:
                wait_for(lambda: list(url.glob("run-*/*.parquet")))
                os.kill(service.status()["planner"]["process"]["process"], signal.SIGKILL)
    store = SeenStore(url)
    assert [store.missing(run) for run in store.counting] == [[]]
    assert rows_of(url, range(90)) == got(0, taken[0]) + got(1, taken[1])


# Planners that die, are slow or get another mesh

JOB = planner_job_of(schedule=None, plans_kept=64)


def files() -> list[str]:
    return sorted(path for path in FaultyStorage.store if path.endswith(".parquet"))


def wait_for(true: Callable[[], object]) -> None:
    while not true():
        time.sleep(0.002)


def made(place: Any, **options: Any) -> StoredPlanner:
    store = RunStore(STORE, "run")
    return StoredPlanner(JOB, METADATA, store, seen=place, **options)


def reference(count: int) -> list[LoadingPlan]:
    planner = Planner(JOB, METADATA)
    return [planner.plan(step) for step in range(count)]  # type: ignore[misc]


@pytest.mark.parametrize("written", [64, 0])
def test_a_planner_that_dies_leaves_no_gap_and_no_sample_twice(
    written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies with steps that it has planned and not recorded, whose later states are stored."""
    if not written:
        monkeypatch.setattr(seen_writer, "STEPS", 10**6)
    place = begin_run(URL, NAMES, None)
    dead = made(place)
    dead.plan(99)
    wait_for(lambda: len(files()) == (written > 0))
    monkeypatch.undo()
    dead._writer.close()  # type: ignore[union-attr]  # the state before step 99 is stored
    planner = made(place)
    assert planner._first > written
    planner.plan(109)
    planner.close()
    plans = planned(reference(110))
    assert rows_of(URL, range(120)) == plans
    dead.close()  # it was only slow, and writes what it has
    assert len(files()) > 1
    assert rows_of(URL, range(120)) == plans
    store = SeenStore(URL)
    for step, rank, *where in list(plans)[::400]:
        found = store.of_sample(SampleId(*where))  # type: ignore[misc]
        assert [(row["step"], row["rank"]) for row in found] == [(step, rank)]
    assert [store.missing(run) for run in store.counting] == [[]]


@pytest.mark.parametrize("written", [True, False])
def test_a_new_mesh_replaces_what_was_planned_ahead(written: bool) -> None:
    planner = made(begin_run(URL, NAMES, None))
    plans = [planner.plan(step) for step in range(8)]
    if written:
        planner._seen.write_soon()  # type: ignore[union-attr]
        wait_for(files)
    planner.remesh({"DP": 3}, 5)
    plans[5:] = [planner.plan(step) for step in range(5, 9 if written else 7)]
    if written:
        wait_for(lambda: len(files()) > 1)  # at once, since a file has other plans of these steps
    planner.close()
    rows = rows_of(URL, range(20))
    assert rows == planned(plans)  # type: ignore[arg-type]
    assert {rank for step, rank, *_ in rows if step >= 5} == {0, 1, 2}


def test_a_state_for_all_ranks_has_what_came_before_it_written() -> None:
    planner = made(begin_run(URL, NAMES, None))
    planner.plan(6)
    assert planner.common_state(5)[STATE_KEY] == planner._seen.run  # type: ignore[union-attr]
    wait_for(files)
    assert rows_of(URL, range(7)) == planned(reference(7))
    planner.close()


# Storage that fails


def failing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Makes files of rows fail; returns those that did."""
    failed: list[str] = []
    put = FaultyStorage.pipe_file

    def fails(self: Any, path: str, value: bytes, **options: Any) -> None:
        if path.endswith(".parquet"):
            failed.append(path)
            raise OSError(28, "No space left on device")
        put(self, path, value, **options)

    monkeypatch.setattr(FaultyStorage, "pipe_file", fails)
    return failed


@pytest.mark.parametrize("most", [10**6, 40])
def test_a_full_disk_is_a_warning_and_the_steps_are_written_later_or_told_to_be_missing(
    most: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seen_writer, "_AFTER_FAILURE", 0.0)
    monkeypatch.setattr(seen_writer, "_MOST", most)
    planner = made(begin_run(URL, NAMES, None))
    with monkeypatch.context() as patch:
        failed = failing(patch)
        planner.plan(4)
        planner._seen.write_soon()  # type: ignore[union-attr]
        wait_for(lambda: failed)
        planner.plan(69)
        wait_for(lambda: planner._seen._fails)  # type: ignore[union-attr]
    planner.plan(79)
    planner.close()
    first = 80 - most if most < 80 else 0
    assert rows_of(URL, range(100)) == planned(reference(80)[first:])
    assert [SeenStore(URL).missing(run) for run in SeenStore(URL).counting] == [
        [(0, first - 1)] if first else []
    ]
    told = [record.message for record in caplog.records if "what was seen" in record.message]
    assert "No space left on device" in told[0]
    assert f"is written again; {first} steps are missing" in told[1]
    assert len(told) == 2


def test_storage_that_hangs_does_not_hold_up_the_end_of_a_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(seen_writer, "_CLOSE", 0.05)
    released = threading.Event()
    planner = Planner(JOB, METADATA, seen=begin_run(URL, NAMES, None))
    planner.plan(3)
    monkeypatch.setattr(FaultyStorage, "pipe_file", lambda *_: released.wait())
    planner.close()
    released.set()
    assert "in the last 4 steps is not written" in caplog.text


def test_a_place_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot .*file"):
        es.start(
            job_of(tmp_path), backend="local", logs=es.LogOptions(seen=tmp_path / "file" / "seen")
        )


def test_queries_that_cannot_be_answered_name_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'web/1' is not SOURCE/SHARD/INDEX"):
        sample_named("web/1")
    with pytest.raises(ConfigurationError, match="has no record of what was seen"):
        SeenStore(tmp_path)
    planner = made(begin_run(URL, NAMES, None))
    planner.plan(3)
    planner.close()
    with pytest.raises(ConfigurationError, match="source 'wob'; they have web, code, books"):
        SeenStore(URL).of_sample(SampleId("wob", 0, 0))
    assert SeenStore(URL).of_sample(SampleId("web", 99, 0)) == []
    FaultyStorage().pipe_file(files()[0], b"PAR1 damaged")
    with pytest.raises(ConfigurationError, match=r"000001-000000000-000000003.*remove it"):
        SeenStore(URL).of_step(2)
