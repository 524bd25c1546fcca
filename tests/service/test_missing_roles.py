"""A role that has died and is long in being played again: nobody waits for it in silence."""

from __future__ import annotations

import logging
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import PATIENCE, until
from service_world import comparable, in_one_process, job_of, sources, steps_of, tokens_of_row
from test_processes import loaders_of, own

pytest.importorskip("zmq", reason="pyzmq is not installed")

import evenstep.service as es
from evenstep.service.backends.processes.process_service import ProcessService


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


@pytest.mark.slow
def test_who_waits_is_told_that_a_loader_has_died_and_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "slow"
    given = sources(tmp_path, transform=Tokens(file))
    job = job_of(tmp_path, sources=given, buffer_size=1)
    with (
        ProcessService(
            job, name=own("missing"), faults=es.ServiceFaults(warn_after=0.5)
        ) as service,
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
            return any(by in line for line in caplog.messages)

        try:
            until(lambda: told("rank 0 has waited") and told(f"{named}"), "a warning")
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
