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
from service_world import comparable, in_one_process, job_of, steps_of, striped
from test_changing_loaders import layouts
from test_remesh import trained_by

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.errors import MeshChangedError
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
            faults=es.ServiceFaults(standbys=standbys),
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


@pytest.mark.soak
@pytest.mark.parametrize("meshes", [[{"DP": 1}], [{"DP": 3}, {"DP": 2}]])
def test_ranks_join_and_leave_though_all_that_hold_steps_die(
    meshes: list[dict[str, int]], tmp_path: Path
) -> None:
    job = job_of(tmp_path, mesh={"DP": 2}, stop="all_exhausted", samples_per_step=6, max_tokens=400)
    seen: list[Any] = []
    with RayService(job, name=f"remesh-{len(meshes)}", loaders=striped(job, 2, 4)) as service:
        for mesh in meshes:
            old = [service.client(rank) for rank in range(len(service.job.tree))]
            taken = [steps_of(client, 1) for client in old]
            former = [handle for _, handle in service._info.constructors]
            service.remesh(mesh)
            info = service._info
            kill(info.registry, info.planner, former[0], info.constructors[0][1])
            for client, steps in zip(old, taken):
                while client.step < info.step:
                    steps += steps_of(client, 1)
                with pytest.raises(MeshChangedError, match="make a new client"):
                    next(client)
                seen += trained_by(steps)
            state = service.state_dict(info.step)
            expected = in_one_process(service.job, 2, ranks=range(mesh["DP"]), state=state)
            got = [steps_of(service.client(rank), 2) for rank in range(mesh["DP"])]
            assert list(map(comparable, got)) == expected
        for rank in range(len(got)):
            seen += trained_by(steps_of(service.client(rank)))
        status = service.status()
    assert len(seen) == len(set(seen)) == 155 - status["planner"]["left_over"]
    assert status["failed"] is None


@SOAK
def test_a_role_that_hangs_is_killed_and_made_again(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    expected = in_one_process(job, 6)[0]
    with RayService(job, name="hangs", faults=es.ServiceFaults(hung_after=4.0)) as service:
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
