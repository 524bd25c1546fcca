"""A registry on Ray that restarts: clients find its sockets before it knows its job."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from service_world import job_of

import evenstep.service as es
from evenstep.service.backends.ray import registry_actor
from evenstep.service.backends.ray.locators import RayLocator
from evenstep.service.backends.ray.registry_actor import JobRegistryActor
from evenstep.service.messages import message
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.registry.role_status import EventLog
from evenstep.service.registry.role_watch import RoleWatch
from evenstep.service.remote.channels import (
    Answer,
    Location,
    RoleGoneError,
    RolePlace,
    SocketChannel,
)
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.transport.endpoint import Keys

ray = pytest.importorskip("ray", reason="ray is not installed")
PATIENCE = 30.0  # seconds


def test_a_question_that_comes_before_the_job_is_known_is_answered_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Answer] = []

    async def restart(state: Any) -> None:
        registry = JobRegistryActor(RayLocator("space", "registry"), Keys.new())
        asked = threading.Thread(
            target=lambda: answers.append(
                SocketChannel(registry.endpoint).send([message(JobRegistry.job)]).answer()
            )
        )

        def exporter(job: str) -> None:  # its sockets are open by now
            asked.start()
            asked.join(0.5)
            assert not answers

        monkeypatch.setattr(registry_actor, "MetricsExporter", exporter)
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
        await registry.update(state)
        await asyncio.to_thread(asked.join, PATIENCE)

    with es.start(job_of(tmp_path), backend="processes", name="restarts") as service:
        asyncio.run(restart(service._state))
    (answer,) = answers
    assert answer.error is None
    assert answer.value[0].name == "restarts"


class Line:
    """A channel of a process that lives, or not."""

    def __init__(self, lives: bool) -> None:
        self.lives = lives

    def send(self, messages: Any) -> Line:
        return self

    async def later(self) -> Answer:
        if not self.lives:
            raise RoleGoneError
        await asyncio.Event().wait()
        raise AssertionError

    def close(self) -> None:
        pass


class Found:
    """Finds the process that has followed."""

    def __init__(self, location: Location) -> None:
        self.location = location

    def locate(self, dead: Location | None) -> Location:
        return self.location


def test_a_registry_that_restarts_tells_once_and_truly_what_it_has_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "events.jsonl"
    now = time.time_ns()
    followed = now - 60_000_000_000
    dead = Location(cast(Any, Line(False)), 41, "far", now - 90_000_000_000)
    found = Location(cast(Any, Line(True)), 42, "near", followed)

    async def watch() -> list[dict[str, Any]]:
        handle = RemoteHandle(RolePlace("Source Loader 0", dead, Found(found)))
        watched = RoleWatch(handle, EventLog(path), None, None)
        task = asyncio.ensure_future(watched.run())
        await asyncio.sleep(0.3)
        task.cancel()
        return list(watched.restarts)

    (restart,) = asyncio.run(watch())
    assert restart["time"] == followed / 1e9
    assert asyncio.run(watch()) == []  # the next registry
    (line,) = map(json.loads, path.read_text().splitlines())
    assert (line["event"], line["time"]) == ("restarted", followed / 1e9)
    assert (line["died"]["process"], line["followed_by"]["process"]) == (41, 42)
    clock = time.strftime("%H:%M:%S", time.localtime(followed / 1e9))
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == (
        "Source Loader 0 (process 41 on far) died before this registry started; process 42 on "
        f"near plays its role since {clock}"
    )
