"""A loader gives the same samples whatever it was asked before, and drops those that are done."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import (
    Rows,
    comparable,
    failing,
    in_one_process,
    job_of,
    rows,
    sources,
    steps_of,
    tokens_of_row,
    write_parquet,
)

import evenstep.service as es
from evenstep.data import open_reader
from evenstep.errors import ConfigurationError, LoaderDiedError, MismatchError, SampleError
from evenstep.mixture import LengthCurriculum
from evenstep.service.source_loader import source_buffer, source_loader


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    return job_of(tmp_path_factory.mktemp("loader"), stop="all_exhausted", buffer_size=10)


def table_of(ahead: Any) -> list[tuple[int, ...]]:
    return list(map(tuple, ahead.rows.tolist()))


@settings(max_examples=15)
@given(data=st.data())
def test_what_is_ahead_does_not_depend_on_what_was_asked_before(
    job: es.Job, data: st.DataObject
) -> None:
    parts = data.draw(st.integers(1, 3))
    name = data.draw(st.sampled_from(job.names))
    fresh = es.SourceLoader(job.for_loader([name]))
    whole = table_of(fresh.ahead(name, 0, 1000))
    assert fresh.ahead(name, 0, 1000).over
    assert len(whole) == fresh.describe()[name]["size"]
    shares = [es.SourceStripe(source=name, part=p, parts=parts, stripe=5) for p in range(parts)]
    loaders = [es.SourceLoader(job.for_loader([share])) for share in shares]
    for _ in range(data.draw(st.integers(1, 8))):
        position, count = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 30))
        if data.draw(st.booleans()):
            loaders[0]._buffers[name].fill_chunk()
        answers = [loader.ahead(name, position, count) for loader in loaders]
        end = min(answer.end for answer in answers)
        found = sorted(row for answer in answers for row in table_of(answer) if row[0] < end)
        assert found == whole[position:end]
        if end < position + count:
            assert any(answer.over for answer in answers if answer.end == end)


def test_a_failure_is_reported_by_its_position_with_all_samples_before_it(tmp_path: Path) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=failing))
    for name in job.names:
        with open_reader(job.sources[job.names.index(name)], seed=job.seed) as reader:
            items = reader.read(passes=1, transform=False)
            (bad,) = (item.position for item in items if item.sample["id"] % 1000 == 17)
        answer = es.SourceLoader(job.for_loader([name])).ahead(name, 0, 1000)
        assert answer.failure is not None
        assert answer.failure.position == answer.end == len(answer.rows) == bad


SCRIPT = """
import sys
import evenstep.service as es

def tokens(row):
    return {"input_ids": [0] * row["length"]}

def strategy(graph, mesh, step):
    return graph.mix().distribute("DP").plan()

if __name__ == "__main__":
    source = es.Source("a", sys.argv[1], transform=tokens)
    job = es.Job(sources=[source], mesh=es.Mesh(DP=1), strategy=strategy, max_tokens=64,
                 memory=es.ServiceMemory(workers=1))
    loader = es.SourceLoader(job.for_loader(job.names))
    print(*loader.ahead("a", 0, 3).rows[:, 3].tolist())
    loader.close()
"""


def test_functions_of_the_main_module_reach_worker_processes(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"length": 7}] * 3)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    started = [
        subprocess.Popen(
            [sys.executable, *how, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for how in ([str(script)], ["-c", SCRIPT])
    ]
    for each in started:
        out, err = each.communicate(timeout=60)
        assert out.split() == ["7"] * 3, err


def test_worker_processes_prepare_the_same_samples_and_the_same_errors(tmp_path: Path) -> None:
    """By functions that have no name in a module."""
    more = 3

    def failing_longer(row: Mapping[str, Any]) -> dict[str, Any]:
        return failing({**row, "length": row["length"] + more})

    given = sources(tmp_path, transform=failing_longer)
    outcomes = []
    for workers in (0, 2):
        job = job_of(
            tmp_path, sources=given, workers=workers, supervised=lambda s: len(s["input_ids"]) - 1
        )
        with es.start(job, backend="local") as service:
            taken: list[Any] = []
            with pytest.raises(SampleError, match=r"failing.*\[\d+\]\[\d+\].*bad row") as caught:
                taken.extend(service.client(1))
            outcomes.append((comparable(taken), str(caught.value)))
            if workers:
                _check_death(service._loaders[0])
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0]


def _check_death(loader: es.SourceLoader) -> None:
    known = table_of(loader.ahead("books", 0, 6))
    loader.ahead("books", 8, 1)  # what comes before is prepared again
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGKILL)
    assert table_of(loader.ahead("books", 0, 6)) == known


def lethal(row: Mapping[str, Any]) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_what_kills_each_worker_is_an_error(tmp_path: Path) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=lethal), workers=1)
    loader = es.SourceLoader(job.for_loader(["web"], number=3))
    with pytest.raises(LoaderDiedError, match=r"Source Loader 3 died .* 3 that followed"):
        loader.ahead("web", 0, 1)
    loader.close()


calls = itertools.count()


def never_the_same(row: Mapping[str, Any]) -> dict[str, Any]:
    return tokens_of_row({**row, "length": row["length"] + next(calls) % 5})


def test_a_transform_that_gives_another_sample_the_second_time_is_found_out(tmp_path: Path) -> None:
    source = es.Source("moody", Rows(rows(30, 0, 40)), transform=never_the_same)
    job = job_of(tmp_path, sources=[source], samples_per_step=8)
    with es.start(job, backend="local") as service:
        steps_of(service.client(0), 3)
        service._loaders[0]._staged.clear()
        service._constructors[0].close()
        with pytest.raises(MismatchError, match=r"sample moody\[.*must give the same each time"):
            steps_of(service.client(0), 1)


@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_samples_that_waited_longer_than_they_are_held_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A curriculum lets long samples wait; a loader holds a limited number of bytes of them."""
    monkeypatch.setattr(source_buffer, "_PASSED_PLANS", 0)
    curriculum = LengthCurriculum({0: 12, 3: 12, 8: 60}, linear=True)
    options = {"buffer_size": 2, "buffer_bytes": limit}
    job = job_of(tmp_path, curriculum=curriculum, stop="all_exhausted", **options)
    with es.start(job, backend="local", loaders=2) as service:
        clients = [service.client(rank) for rank in range(2)]
        held = 0
        while all(steps_of(client, 1) for client in clients):
            held = max(held, *(max(x["sources"].values()) for x in service.status()["loaders"]))
        status = service.status()["planner"]
    assert sum(status["drawn"].values()) == 155
    assert (held > 20) == (limit > 1)


def test_a_loader_opens_its_own_sources_only(tmp_path: Path) -> None:
    given = sources(tmp_path)
    gone = es.Source("gone", str(write_parquet(tmp_path / "gone.parquet", rows(8, 1, 9))))
    job = job_of(tmp_path, sources=[*given, gone])
    (tmp_path / "gone.parquet").unlink()
    loader = es.SourceLoader(job.for_loader(["code"]))
    assert list(loader.describe()) == ["code"]
    with pytest.raises(ConfigurationError, match="does not have source 'web'; it has code"):
        loader.ahead("web", 0, 1)
    with pytest.raises(ConfigurationError, match="which the job does not have"):
        job.for_loader(["cod"])
    with pytest.raises(ConfigurationError, match="gone"):
        es.start(job, backend="local")


def test_a_client_begins_again_after_more_steps_than_loaders_remember(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_loader, "STEPS_KEPT", 3)
    with es.start(job_of(tmp_path), backend="local", loaders=2) as service:
        ahead = comparable(steps_of(service.client(0), 8))
        assert comparable(steps_of(service.client(0), 8)) == ahead
        behind = steps_of(service.client(1), 8)
    assert comparable(behind) == in_one_process(job_of(tmp_path), 8, ranks=[1])[0]
