"""A loader that takes too much memory is killed and followed, or ends the job."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray_cluster import PATIENCE, until
from service_world import comparable, in_one_process, job_of, sources, steps_of, tokens_of_row
from test_processes import own

pytest.importorskip("zmq", reason="pyzmq is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError, LoaderDiedError, WrongTypeError
from evenstep.service.backends.processes.service import ProcessService
from evenstep.service.registry import role_limits
from evenstep.service.registry.event_log import EventLog
from evenstep.service.registry.role_limits import LimitWatch

MEBI = 1 << 20
LIMIT = 250 * MEBI
LEAKED: list[bytes] = []


def leaking(times: int, folder: Path, row: Mapping[str, Any]) -> dict[str, Any]:
    """A transform that once in a process leaks what is over the limit, so many times in all."""
    marks = sorted(folder.glob("leak-*"))
    if row["id"] == 1007 and not LEAKED and len(marks) < times:
        (folder / f"leak-{len(marks)}").touch()
        LEAKED.append(b"x" * LIMIT)
    return tokens_of_row(row)


def leaking_job(folder: Path, times: int, **options: Any) -> es.Job:
    return job_of(
        folder, sources=sources(folder, transform=partial(leaking, times, folder)), **options
    )


def plain_job(folder: Path, **options: Any) -> es.Job:
    return job_of(folder, sources=sources(folder, transform=tokens_of_row), **options)


def test_a_loader_over_its_memory_limit_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, events = leaking_job(tmp_path, 1, workers=1), tmp_path / "events.jsonl"
    options = {"faults": es.FaultOptions(memory_limit=LIMIT), "logs": es.LogOptions(events=events)}
    with ProcessService(job, name=own("leaks"), loaders=2, **options) as service:
        client = service.client(0)
        taken = steps_of(client, 2)
        until(lambda: service.status()["restarts"], "a successor")
        taken += steps_of(client, 7)
        status = service.status()
    assert comparable(taken) == in_one_process(plain_job(tmp_path), 9)[0]
    (restart,) = status["restarts"]
    assert restart["role"] == "Source Loader 0"
    assert not psutil.pid_exists(restart["died"]["process"])
    killed, restarted = map(json.loads, events.read_text().splitlines())
    assert restarted == {"event": "restarted", **restart}
    assert (killed["event"], killed["why"]) == ("killed", "memory")
    assert killed["process"] == restart["died"]["process"]
    assert killed["memory_bytes"] > killed["memory_limit"] == LIMIT
    assert "memory_limit of 250 MiB: it is killed, and another follows; give it" in caplog.text
    for loader in status["loaders"]:
        assert 10 * MEBI < loader["process"]["private_bytes"] < LIMIT


def test_a_loader_that_is_always_over_its_memory_limit_ends_the_job(tmp_path: Path) -> None:
    job, events = leaking_job(tmp_path, 99), tmp_path / "events.jsonl"
    with (
        ProcessService(
            job,
            name=own("huge"),
            faults=es.FaultOptions(memory_limit=LIMIT),
            logs=es.LogOptions(events=events),
        ) as service,
        ThreadPoolExecutor(2) as threads,
    ):
        trainers = [threads.submit(forever, service.client(rank)) for rank in range(2)]
        said = r"Source Loader 0 .* than the memory_limit of 250 MiB, and so did the 3 processes "
        for trainer in trainers:
            with pytest.raises(LoaderDiedError, match=rf"{said}.*'web'.*lower buffer_bytes="):
                trainer.result(PATIENCE)
        assert "memory_limit" in service.status()["failed"]
    happened = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert happened.count("killed") == 3


def forever(client: es.RankClient) -> None:
    while True:
        steps_of(client, 1)
        time.sleep(0.1)


class Loaders:
    """Loaders of which each process takes too much memory."""

    def __init__(self) -> None:
        self.killed = 0
        self.handle = SimpleNamespace(role="Source Loader 0", name="Source Loader 0", about={})

    async def process(self, limit: float) -> dict[str, Any]:
        said = {"process": self.killed, "host": "a", "private_bytes": 2 * LIMIT}
        return {"process": said}

    def kill(self, about: Mapping[str, Any]) -> None:
        self.killed += 1
        if self.killed == 10:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("soon", "killed"), [(60.0, 3), (0.0, 10)])
def test_only_what_comes_soon_ends_the_job(
    soon: float, killed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(role_limits, "_LOOK", 0.0)
    monkeypatch.setattr(role_limits, "_SOON", soon)
    loaders: Any = Loaders()
    given: tuple[Any, ...] = lambda: [loaders], lambda: {"Source Loader 0": ["a"]}, loaders.kill
    watch = LimitWatch(es.FaultOptions(memory_limit=LIMIT), *given, EventLog(None))
    with pytest.raises((LoaderDiedError, KeyboardInterrupt)):
        asyncio.run(watch.memory())
    assert loaders.killed == killed


@pytest.mark.parametrize(
    ("limit", "workers", "error", "said"),
    [
        (0, 0, ConfigurationError, "at least 1"),
        (1e9, 0, WrongTypeError, "integer"),
        (4096, 0, ConfigurationError, "before it opens a source"),
        (100 * MEBI, 3, ConfigurationError, "a loader with 3 workers"),
    ],
)
def test_limits_that_no_loader_can_keep_are_refused(
    limit: Any, workers: int, error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=f"memory_limit=.*{said}"):
        es.start(
            job_of(tmp_path, workers=workers),
            backend="processes",
            faults=es.FaultOptions(memory_limit=limit),
        )
