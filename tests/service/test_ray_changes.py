"""Loaders and the mesh of a job on Ray change while it runs, and its actors die: whoever follows
them goes by what has changed."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import PATIENCE
from service_world import comparable, in_one_process, job_of, steps_of
from test_changing_loaders import layouts

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.service.backends.ray import RayService

STEPS = 7
SOAK = pytest.mark.soak


pytestmark = pytest.mark.usefixtures("ray_of_file")


def kill(*handles: Any) -> None:
    for handle in handles:
        os.kill(handle.place.known.process, signal.SIGKILL)


@SOAK
@pytest.mark.parametrize("standbys", [0, 1])
def test_no_batch_changes_whatever_loaders_there_are_and_whoever_dies(
    standbys: int, tmp_path: Path
) -> None:
    job = job_of(tmp_path, stop="all_exhausted")
    expected = in_one_process(job, STEPS)
    with (
        RayService(
            job,
            name=f"changing-{standbys}",
            faults=es.FaultOptions(standbys=standbys),
        ) as service,
        ThreadPoolExecutor(2) as threads,
    ):
        clients = [service.client(rank) for rank in range(2)]
        taken: list[Any] = [steps_of(client, 2) for client in clients]
        info = service._info
        for layout in layouts(job.names)[: 1 if standbys else 2]:
            trainers = [threads.submit(steps_of, client, 2) for client in clients]
            service.use_loaders(layout)  # while trainers take steps
            for rank, trainer in enumerate(trainers):
                taken[rank] += trainer.result(PATIENCE)
            assert len(service.status()["loaders"]) == len(layout.shares)
        kill(info.registry, info.planner, info.constructors[1][1], service._info.loaders[0])
        for rank, client in enumerate(clients):
            taken[rank] += steps_of(client, STEPS - len(taken[rank]))
        status = service.status()
    assert [comparable(each) for each in taken] == expected
    assert status["failed"] is None
    assert len(status["loaders"]) == len(layout.shares)


@SOAK
def test_a_role_that_hangs_is_killed_and_made_again(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    expected = in_one_process(job, 6)[0]
    with RayService(job, name="hangs", faults=es.FaultOptions(hung_after=4.0)) as service:
        client = service.client(0)
        taken = steps_of(client, 2)
        hung = [service._info.loaders[0], service._info.planner]
        for handle in hung:
            known = handle.place.known
            assert known is not None
            os.kill(int(known.process or 0), signal.SIGSTOP)
        taken += steps_of(client, 4)
        restarts = service.status()["restarts"]
    assert comparable(taken) == expected
    assert {each.role for each in hung} <= {each["role"] for each in restarts}
