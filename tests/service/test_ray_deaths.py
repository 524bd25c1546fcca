"""Whichever actors die, all clients get the batches that would have come."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import HERE, PATIENCE, processes, small_cluster
from service_world import comparable, job_of, sources, steps_of, tokens_of_row

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.service.backends.ray import RayService
from evenstep.service.remote.handles import RemoteHandle

pytestmark = pytest.mark.soak

STEPS = 6
ROLES = (
    ("loader 1",),
    ("planner",),
    ("constructor 1",),
    ("registry",),
    ("loader 0", "loader 1"),
    ("planner", "registry"),
    ("constructor 0", "loader 0", "planner"),
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


def slowly(row: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(0.05)
    return tokens_of_row(row)


def handle_of(service: RayService, role: str) -> RemoteHandle:
    info = service._info
    kind, _, number = role.partition(" ")
    if kind in ("planner", "registry"):
        return info.planner if kind == "planner" else info.registry
    return info.loaders[int(number)] if kind == "loader" else info.constructors[int(number)][1]


def process_of(service: RayService, role: str) -> int:
    known = handle_of(service, role).place.known
    assert known is not None
    return int(known.process or 0)


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("roles", ROLES, ids=" and ".join)
def test_clients_get_the_same_whichever_actors_die(
    roles: tuple[str, ...], waiting: bool, tmp_path: Path
) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=slowly))
    with es.start(job, backend="local") as local:
        expected = [comparable(steps_of(local.client(rank), STEPS)) for rank in range(2)]
    with RayService(job, name="mortal", loaders=2) as service, ThreadPoolExecutor(2) as trainers:
        clients = [service.client(rank) for rank in range(2)]
        taken = [[] if waiting else steps_of(client, 2) for client in clients]
        killed = [process_of(service, role) for role in roles]
        more = [
            trainers.submit(steps_of, client, STEPS - len(before))
            for client, before in zip(clients, taken)
        ]
        for process in killed:
            os.kill(process, signal.SIGKILL)
        taken = [before + each.result(PATIENCE) for before, each in zip(taken, more)]
        status = service.status()
    assert [comparable(each) for each in taken] == expected
    assert status["failed"] is None


def test_worker_processes_run_the_functions_of_a_script(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [str(HERE / "ray_main_script.py"), str(tmp_path), address, "1"]
    with processes([command], [{}]) as (script,):
        assert script.json()["same"]
