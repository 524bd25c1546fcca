"""A job over storage that delays, fails, cuts off and dies: the same batches, or one error that a
resumed job does not meet again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_world import (
    comparable,
    in_one_process,
    job_of,
    rows,
    steps_of,
    striped,
    write_jsonl,
    write_parquet,
)

import evenstep.service as es
from chaos_storage import ControlledStorage, tokens_of_far_row
from evenstep.errors import StorageError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("far")
    write_parquet(folder / "a.parquet", rows(60, 1000, 40), group=12)
    write_jsonl(folder / "b.jsonl", rows(45, 2000, 40))
    return folder


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenstep.data.storage._FIRST_PAUSE", 0.0005)
    monkeypatch.setattr("evenstep.data.storage._LONGEST_PAUSE", 0.002)


def far_job(folder: Path, *, patience: float = 60.0, bad: int = 0, **storage: Any) -> es.Job:
    given = {name: str(v) if name == "control" else v for name, v in storage.items()}
    options: dict[str, Any] = {
        "transform": tokens_of_far_row,
        "patience": patience,
        "storage_options": given,
        "bad_samples": bad,
    }
    far = [
        es.Source("a", f"chaos://{folder}/*.parquet", weight=0.6, **options),
        es.Source("b", f"chaos://{folder}/b.jsonl", weight=0.4, block=8, **options),
    ]
    return job_of(folder, sources=far, stop="all_exhausted", buffer_size=12)


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Any]:
    return in_one_process(far_job(folder))[0]


@pytest.mark.usefixtures("short_pauses")
def test_whatever_fails_the_batches_are_the_same(folder: Path, expected: list[Any]) -> None:
    @settings(max_examples=5)
    @given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.1, 0.4]), loaders=st.integers(1, 3))
    def check(seed: int, rate: float, loaders: int) -> None:
        job = far_job(folder, seed=seed, rate=rate, bad=3)
        with es.start(job, backend="local", loaders=striped(job, loaders, 6)) as service:
            assert comparable(steps_of(service.client(0))) == expected
            assert not service.status()["planner"]["bad_samples"]

    check()


@pytest.mark.usefixtures("short_pauses")
@pytest.mark.parametrize("bad", [0, 200])
def test_an_outage_is_one_error_and_a_resumed_job_reads_again(
    folder: Path, tmp_path: Path, expected: list[Any], bad: int
) -> None:
    storage = ControlledStorage(tmp_path)
    job = far_job(folder, control=storage.path, patience=0.05, bad=bad)
    with es.start(job, backend="local") as service:
        client = service.client(0)
        taken = comparable(steps_of(client, 2))
        storage.fail()
        with pytest.raises(StorageError, match=r"chaos|far") as caught:
            steps_of(client)
        reached = client.step
        taken += expected[2:reached]
        text = str(caught.value)
        for part in (str(folder), "cannot be read: tried ", "ConnectionError", "patience=0.05"):
            assert part in text
        assert not service.status()["planner"]["bad_samples"]
        state = json.loads(json.dumps(service.state_dict(reached)))
    with pytest.raises(StorageError, match="tried"):
        es.start(job, backend="local", state=state)
    storage.stop()
    assert taken + in_one_process(job, ranks=[0], state=state)[0] == expected


@pytest.mark.usefixtures("short_pauses")
def test_an_outage_that_is_over_before_the_samples_are_needed_is_none(
    folder: Path, tmp_path: Path, expected: list[Any]
) -> None:
    """A loader that could not read ahead reads again once it is asked."""
    storage = ControlledStorage(tmp_path)
    job = far_job(folder, control=storage.path, patience=0.05)
    with es.start(job, backend="local") as service:
        client = service.client(0)
        taken = comparable(steps_of(client, 1))
        buffers, outages = service._loaders[0]._buffers.values(), 0
        for _ in range(60 // 12):  # the row group that is decoded already comes first
            storage.fail()
            for buffer in buffers:
                buffer.fill_chunk()
                outages += buffer._window.outage
            storage.stop()
            taken += comparable(steps_of(client, 1))
        assert outages > 1
        assert taken + comparable(steps_of(client)) == expected


def test_processes_go_on_after_an_outage_that_is_shorter_than_their_patience(
    folder: Path, tmp_path: Path, expected: list[Any]
) -> None:
    pytest.importorskip("zmq")
    storage = ControlledStorage(tmp_path)
    job = far_job(folder, control=storage.path, seed=7, rate=0.1)
    name = f"far-{os.getpid()}"
    with es.start(job, backend="processes", name=name, loaders=2) as service:
        client = service.client(0)
        taken = comparable(steps_of(client, 1))
        storage.fail()
        over = threading.Timer(1.0, storage.stop)
        over.start()
        taken += comparable(steps_of(client))
        over.join()
    assert taken == expected
