"""A role that has died and is long in being played again: nobody waits for it in silence."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import PATIENCE, until
from service_world import comparable, job_of, sources, steps_of, tokens_of_row
from test_processes import in_one_process, loaders_of, own

pytest.importorskip("zmq", reason="pyzmq is not installed")

import evenstep.service as es
from evenstep.errors import EvenstepError
from evenstep.service.backends.processes.service import ProcessService
from evenstep.service.remote.channels import Answer, PendingAnswer, RoleGoneError
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_place import Location, RolePlace


class Tokens:
    """A transform that is not received while a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, row: Any) -> Any:
        return tokens_of_row(row)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        while self.file.exists():
            time.sleep(0.05)


def test_who_waits_is_told_that_a_loader_has_died_and_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "slow"
    given = sources(tmp_path, transform=Tokens(file))
    job = job_of(tmp_path, sources=given, buffer_size=1)
    with (
        ProcessService(job, name=own("missing"), faults=es.FaultOptions(warn_after=0.5)) as service,
        ThreadPoolExecutor(1) as trainer,
    ):
        client = service.client(0)
        taken = steps_of(client, 1)
        (loader,) = loaders_of(service)
        file.touch()
        os.kill(loader, signal.SIGKILL)
        waiting = trainer.submit(steps_of, client, 5)
        named = f"Source Loader 0 (process {loader} on "

        def told(by: str) -> bool:
            """By one who waits, and by the watch over loaders."""
            lines = [line for line in caplog.messages if named in line and by in line]
            return any("and no process plays its role yet" in line for line in lines)

        try:
            until(lambda: told("rank 0 has waited") and told(" s ago"), "a warning")
            (restarting,) = service.status()["restarting"]
            assert restarting.startswith(named)
            assert restarting.endswith("s ago, and no process plays its role yet")
            assert not waiting.done()
        finally:
            file.unlink()
        taken += waiting.result(PATIENCE)
        assert service.status()["restarting"] == []
    assert comparable(taken) == in_one_process(job, 6)[0]
    assert {record.levelno for record in caplog.records} <= {logging.INFO, logging.WARNING}


class Pending:
    """An answer that is there at once, or the news that its role is gone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def first_of(self, others: Sequence[Any], seconds: float | None) -> PendingAnswer:
        return self

    def answer(self) -> Answer:
        if self.value is None:
            raise RoleGoneError
        return Answer([self.value])

    async def later(self) -> Answer:
        return self.answer()


class OneChannel:
    def __init__(self, value: Any) -> None:
        self.value = value

    def send(self, messages: Sequence[Any]) -> Pending:
        return Pending(self.value)

    def close(self) -> None:
        pass


class LateLocator:
    """Finds the successor when it is there."""

    def __init__(self) -> None:
        self.there = threading.Event()

    def locate(self, dead: Location | None) -> Location:
        assert self.there.wait(PATIENCE)
        return Location(OneChannel("the batch"), 8, "b")


class LateMonitor:
    """Rings after some time."""

    def __init__(self, seconds: float) -> None:
        self.pending: list[PendingAnswer] = []
        self._at = time.monotonic() + seconds

    def error(self) -> Exception | None:
        return EvenstepError("another role has died") if time.monotonic() > self._at else None


def test_a_client_that_waits_for_a_successor_says_so_and_takes_its_answer() -> None:
    locator, told = LateLocator(), []

    def on_wait(handle: RemoteHandle, request: Any, seconds: float, awaited: Any) -> None:
        told.append((handle.name, str(request), seconds, list(awaited)))
        if len(told) == 2:
            locator.there.set()

    place = RolePlace("Data Constructor 0", Location(OneChannel(None), 7, "a"), locator)
    handle = RemoteHandle(place).using(on_wait=on_wait, warn_after=0.05)
    assert handle.send("deliver", 3, 0).result() == "the batch"
    (first, _, early, nobody), (second, _, later, _) = told[:2]
    assert first == second == "Data Constructor 0 (process 7 on a)"
    assert later > 1.5 * early
    assert nobody == []
    assert handle.name == "Data Constructor 0 (process 8 on b)"


def test_a_client_that_waits_for_a_successor_hears_the_alarm() -> None:
    locator, monitor = LateLocator(), LateMonitor(0.2)
    place = RolePlace("Data Constructor 0", Location(OneChannel(None), 7, "a"), locator)
    handle = RemoteHandle(place).using(monitor=monitor)
    try:
        with pytest.raises(EvenstepError, match="another role has died"):
            handle.send("deliver", 3, 0).result()
    finally:
        locator.there.set()
