"""Whichever actor dies, no client hangs: each gets an error naming it, waiting or not."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import HERE, PATIENCE, processes, small_cluster
from service_world import job_of, sources, steps_of, tokens_of_row

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.errors import LoaderDiedError
from evenstep.service.ray import RayService

pytestmark = pytest.mark.soak

NAMES = {
    "loaders": r"Source Loader 1 \(process",
    "planner": r"the Planner \(process",
    "constructors": r"Data Constructor 1 \(process",
    "registry": "the registry",
}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


def slowly(row: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(0.5)
    return tokens_of_row(row)


def kill(service: RayService, role: str) -> None:
    if role == "registry":
        (registry,) = [
            process.pid
            for process in psutil.Process().children(recursive=True)
            if process.name().startswith("ray::JobRegistry")
        ]
        return os.kill(registry, signal.SIGKILL)
    status = service.status()[role]
    last = status if isinstance(status, dict) else status[-1]
    return os.kill(last["process"]["process"], signal.SIGKILL)


def last_words(client: es.RankClient) -> str:
    """The error that ends its steps."""
    try:
        steps_of(client)
    except LoaderDiedError as error:
        return str(error)
    raise AssertionError("the steps ended without an error")


@pytest.mark.parametrize("role", NAMES)
@pytest.mark.parametrize("waiting", [False, True])
def test_every_client_gets_an_error_naming_the_dead_actor(
    role: str, waiting: bool, tmp_path: Path
) -> None:
    transform = slowly if waiting else tokens_of_row
    job = job_of(tmp_path, sources=sources(tmp_path, transform=transform))
    with RayService(job, name="mortal", loaders=2) as service, ThreadPoolExecutor(2) as trainers:
        clients = [service.client(rank) for rank in range(2)]
        if not waiting:
            for client in clients:
                assert len(steps_of(client, 2)) == 2
            kill(service, role)
        errors = [trainers.submit(last_words, client) for client in clients]
        if waiting:
            time.sleep(1.0)
            kill(service, role)
        texts = [each.result(PATIENCE) for each in errors]
    for each in texts:
        assert [name for name, pattern in NAMES.items() if re.search(pattern, each)] == [role]


def test_worker_processes_run_the_functions_of_a_script(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [str(HERE / "ray_main_script.py"), str(tmp_path), address, "1"]
    with processes([command], [{}]) as (script,):
        assert script.json()["same"]
