"""Bad samples up to a limit are passed over: in any layout, after any resume, others come alike."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import Rows, job_of, steps_of, striped, tokens_of_row, write_parquet

import evenstep.service as es
from evenstep.errors import ConfigurationError, SampleError, StorageError

pytest.importorskip("pyarrow")

SIZES = {"parquet": 40, "jsonl": 30, "map": 20}
Where = tuple[str, int]
"""Source and row."""


def picky(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["how"] == "transform":
        raise ValueError("a bad row")
    sample = tokens_of_row(row)
    if row["how"] == "measure":
        sample["input_ids"] = 7
    return sample


def without_package(row: Mapping[str, Any]) -> dict[str, Any]:
    import a_tokenizer_that_nobody_has  # type: ignore  # noqa: F401

    return tokens_of_row(row)


class Broken(Rows):
    def __getitem__(self, index: int) -> Mapping[str, Any]:
        row = super().__getitem__(index)
        if row["how"] == "read":
            raise KeyError("a row that cannot be read")
        return row


def sources_of(folder: Path, bad: Mapping[Where, str], limit: int) -> list[es.Source]:
    """A source of each kind.

    Args:
        bad: what fails for a row: "read", "transform" or "measure".
    """
    tables = {
        kind: [
            {"id": 1000 * k + n, "length": 2 + n % 9, "how": bad.get((kind, n), "")}
            for n in range(size)
        ]
        for k, (kind, size) in enumerate(SIZES.items())
    }
    lines = [
        "[1]" if row["how"] == "read" else json.dumps(row) for row in tables["jsonl"]
    ]  # a line that is no object
    (folder / "b.jsonl").write_text("\n".join(lines) + "\n")
    for row in tables["parquet"]:
        row["text"] = b"\xff" if row["how"] == "read" else b"x"
    path = write_parquet(folder / "a.parquet", tables["parquet"])
    _as_text(path)
    options: dict[str, Any] = {"transform": picky, "bad_samples": limit}
    return [
        es.Source("parquet", str(path), weight=0.5, **options),
        es.Source("jsonl", str(folder / "b.jsonl"), block=7, weight=0.3, **options),
        es.Source("map", Broken(tables["map"]), block=6, weight=0.2, **options),
    ]


def _as_text(path: Path) -> None:
    """Makes the column of bytes one of text, some of which is then not UTF-8."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(path)
    raw = table["text"].combine_chunks()
    text = pyarrow.Array.from_buffers(pyarrow.string(), len(raw), raw.buffers())
    at = table.schema.get_field_index("text")
    parquet.write_table(table.set_column(at, "text", text), path, row_group_size=16)


def job_with(folder: Path, bad: Mapping[Where, str], limit: int = 100, **options: Any) -> es.Job:
    given = {"stop": "all_exhausted", "mesh": es.Mesh(DP=1), "micro_batches": 1}
    given |= {"samples_per_step": 9, "max_tokens": 400, **options}
    return job_of(folder, sources=sources_of(folder, bad, limit), **given)


def drawn(service: Any, begin: int = 0, end: int = 1000) -> Iterator[list[str]]:
    """The samples of each step, in order."""
    for step in range(begin, end):
        plan = service.plan(step)
        if plan is None:
            return
        yield [str(plan.samples.identity(row)) for row in range(len(plan))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad")


rows_of_sources = st.sampled_from([(kind, n) for kind, size in SIZES.items() for n in range(size)])


@settings(max_examples=3)
@given(data=st.data())
def test_all_others_come_once_in_one_order_in_any_layout_and_after_any_resume(
    folder: Path, data: st.DataObject
) -> None:
    how = st.sampled_from(["read", "transform", "measure"])
    bad = data.draw(st.dictionaries(rows_of_sources, how, max_size=12))
    if data.draw(st.booleans()):  # a run of them, up to a whole source
        kind, first = data.draw(rows_of_sources)
        bad |= {(kind, n): "transform" for n in range(first, min(first + 25, SIZES[kind]))}
    job = job_with(folder, bad)
    with es.start(job, backend="local") as service:
        expected = list(drawn(service))
        status = service.status()["planner"]
    seen = [each for step in expected for each in step]
    assert len(seen) == len(set(seen)) == sum(SIZES.values()) - len(bad)
    assert sum(status["bad_samples"].values()) == len(bad)
    assert {kind for kind, _ in bad} == set(status["bad_samples"])

    taken: list[list[str]] = []
    state = None
    while len(taken) < len(expected):
        job = job_with(folder, bad, buffer_size=data.draw(st.integers(1, 20)))
        # From 4 on, loaders share sources.
        loaders = striped(job, data.draw(st.integers(1, 7)), data.draw(st.integers(1, 9)))
        with es.start(job, backend="local", state=state, loaders=loaders) as service:
            end = data.draw(st.integers(len(taken) + 1, len(expected)))
            for number, step in enumerate(drawn(service, len(taken), end), len(taken)):
                if data.draw(st.booleans()):
                    service._loaders[0]._buffers[service._loaders[0].sources[0]].fill_chunk()
                assert len(steps_of(service.client(0), 1)) == 1  # samples are there to be staged
                taken.append(step)
                assert step == expected[number]
            state = json.loads(json.dumps(service.state_dict(end)))
    with es.start(job, backend="local", state=state) as service:
        assert service.plan(len(expected)) is None
        status = service.status()["planner"]["bad_samples"]
    assert sum(status.values()) == len(bad)


def test_more_than_the_limit_are_one_error_at_one_step_and_a_higher_limit_goes_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = {("jsonl", n): "transform" for n in range(0, 30, 4)}  # 8
    with es.start(job_with(folder, bad), backend="local") as service:
        expected = list(drawn(service))
    job, ends = job_with(folder, bad, 5), set()
    for loaders in (1, 7):
        caplog.clear()
        taken = []
        with es.start(job, backend="local", loaders=striped(job, loaders, 3)) as service:
            with (
                caplog.at_level(logging.WARNING, "evenstep"),
                pytest.raises(SampleError, match="source 'jsonl' has 6 bad samples") as caught,
            ):
                taken.extend(drawn(service))
            for said in (
                "bad_samples=5 of Source",
                "raised ValueError for sample jsonl[",
                "raise bad_samples",
                "start again from the last saved state",
            ):
                assert said in str(caught.value)
            logged = [r.getMessage() for r in caplog.records if "is passed over" in r.getMessage()]
            assert len(set(logged)) == 5
            assert "bad sample 5 of at most bad_samples=5" in logged[-1]
            with pytest.raises(SampleError, match="has 6 bad samples"):
                service.plan(len(taken))
            state = service.state_dict(len(taken))
        assert taken == expected[: len(taken)]
        ends.add(len(taken))
    assert len(ends) == 1
    assert taken
    with es.start(job_with(folder, bad, 8), backend="local", state=state) as service:
        assert list(drawn(service, len(taken))) == expected[len(taken) :]
        assert service.status()["planner"]["bad_samples"] == {"jsonl": 8}


@pytest.mark.parametrize(
    ("count", "limit", "stop", "says"),
    [
        (20, 19, "repeat", "source 'map' has 20 bad samples"),  # it has nothing else
        (20, 19, "all_exhausted", "source 'map' has 20 bad samples"),
        (1, 0, "all_exhausted", r"^transform .*picky raised ValueError for sample map\["),
    ],
)
def test_the_first_sample_over_the_limit_ends_the_job(
    count: int, limit: int, stop: str, says: str, folder: Path
) -> None:
    bad = {("map", n): "transform" for n in range(count)}
    with (
        es.start(job_with(folder, bad, limit, stop=stop), backend="local") as service,
        pytest.raises(SampleError, match=says),
    ):
        list(drawn(service, 0, 60))
    with pytest.raises(ConfigurationError, match="bad_samples=-1"):
        es.Source("a", [1], bad_samples=-1)


@pytest.mark.parametrize("stop", ["repeat", "all_repeated", "first_exhausted"])
def test_a_sample_that_is_bad_in_every_pass_counts_once(folder: Path, stop: str) -> None:
    bad = {("map", n): "read" for n in (0, 7, 19)} | {("parquet", 39): "transform"}
    outcomes = []
    for loaders in (1, 5):
        job = job_with(folder, bad, 3, stop=stop)
        with es.start(job, backend="local", loaders=striped(job, loaders, 4)) as service:
            taken = list(drawn(service, 0, 60))
            counts = service.status()["planner"]["bad_samples"]
            state = service.state_dict(len(taken))
        outcomes.append(taken)
    assert outcomes[0] == outcomes[1]
    seen = [each for step in taken for each in step]
    whole = sum(SIZES.values()) - len(bad)
    if stop == "first_exhausted":
        assert len(seen) == len(set(seen)) < whole
        return
    assert counts == {"map": 3, "parquet": 1}
    assert len(set(seen)) == whole < len(seen)
    if stop == "all_repeated":
        assert len(taken) < 60  # it ends
    with es.start(job_with(folder, bad, 2, stop="repeat"), backend="local", state=state) as service:
        assert service.status()["planner"]["bad_samples"] == counts


class Outage(Rows):
    def __init__(self, error: Exception) -> None:
        super().__init__([{"id": n, "length": 3, "how": ""} for n in range(20)])
        self.error = error

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        if index == 5:
            raise self.error
        return super().__getitem__(index)


class Ended:
    """An iterable that has raised has ended."""

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        yield from ({"id": n, "length": 3, "how": ""} for n in range(12))
        raise ValueError("it has ended")


@pytest.mark.parametrize(
    ("data", "transform", "raised"),
    [
        (Outage(TimeoutError("no answer")), picky, "no answer"),
        (Outage(MemoryError()), picky, "MemoryError"),
        (Outage(StorageError("the store is down")), picky, "the store is down"),
        (Ended(), picky, "it has ended"),
        ([{"id": 1, "length": 3}], without_package, "No module named 'a_tokenizer_that_nobody"),
    ],
)
def test_what_is_no_fault_of_a_sample_is_not_passed_over(
    data: Any, transform: Any, raised: str
) -> None:
    source = es.Source("a", data, transform=transform, bad_samples=20)
    job = job_of(Path(), sources=[source], stop="all_exhausted", mesh=es.Mesh(DP=1))
    with es.start(job, backend="local") as service, pytest.raises(SampleError, match=raised):
        list(drawn(service))


@pytest.mark.slow
def test_processes_and_their_workers_pass_over_the_same(folder: Path) -> None:
    pytest.importorskip("zmq")
    bad: dict[Where, str] = {("parquet", n): "read" for n in (3, 30)}
    bad |= {("jsonl", n): "measure" for n in (0, 1, 29)} | {("map", 4): "transform"}
    outcomes = []
    for workers, options in (
        (0, {"backend": "local"}),
        (1, {"backend": "processes", "name": f"bad-{os.getpid()}"}),
    ):
        with es.start(job_with(folder, bad, workers=workers), **options) as service:
            taken = [step.sample_ids for _, step in steps_of(service.client(0))]
            outcomes.append((taken, service.status()["planner"]["bad_samples"]))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][1] == {"parquet": 2, "jsonl": 3, "map": 1}
