"""Loaders are added, given other sources and taken out while a job runs: no batch changes."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import PATIENCE, kill, until
from service_world import comparable, in_one_process, job_of, steps_of
from test_job_profile import profile_of

pytest.importorskip("zmq", reason="pyzmq is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.mixture import Staged
from evenstep.service.backends.processes.process_service import ProcessService
from evenstep.strategy.loaders import ScalingLimits

STEPS = 9  # more than is ready when loaders die


def whole(*names: str) -> tuple[es.SourceStripe, ...]:
    return tuple(es.SourceStripe(source=name) for name in names)


def shared(name: str, parts: int) -> list[es.SourceStripe]:
    return [es.SourceStripe(source=name, part=n, parts=parts, stripe=4) for n in range(parts)]


def layouts(names: tuple[str, ...]) -> list[es.SourceLayout]:
    """One loader has all; then loaders are added, and two share a source."""
    code = shared("code", 2)
    return [
        es.SourceLayout(names, (whole(*names),)),
        es.SourceLayout(names, ((code[0], *whole("books")), (code[1], *whole("web")))),
    ]


def processes_of(service: Any) -> list[int]:
    places = [handle.place.known for handle in service._info.loaders]
    return [place.process for place in places if place is not None and place.process]


@pytest.mark.parametrize(
    ("backend", "standbys"),
    [
        ("processes", 0),
        pytest.param("ray", 0, marks=pytest.mark.soak),
        pytest.param("ray", 1, marks=pytest.mark.soak),
    ],
)
def test_no_batch_changes(
    backend: str, standbys: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """And whoever follows a role that dies, while clients wait for it, goes by what has changed."""
    if backend == "ray":
        request.getfixturevalue("ray_of_file")
    job = job_of(tmp_path, stop="all_exhausted")
    seen: list[int] = []
    name, faults = f"changing-{os.getpid()}-{standbys}", es.ServiceFaults(standbys=standbys)
    with (
        es.start(job, backend=backend, name=name, loaders=3, faults=faults) as service,
        ThreadPoolExecutor(2) as threads,
    ):

        def followed() -> set[int]:
            return {each["died"]["process"] for each in service.status()["restarts"]}

        clients = [service.client(rank) for rank in range(2)]
        taken: list[Any] = [steps_of(client, 2) for client in clients]
        for layout in layouts(job.names)[1 if standbys else 0 :]:
            seen += processes_of(service)
            trainers = [threads.submit(steps_of, client, 2) for client in clients]
            service.use_loaders(layout)  # while trainers take steps
            for rank, trainer in enumerate(trainers):
                taken[rank] += trainer.result(PATIENCE)
            now = processes_of(service)
            assert len(now) == len(service.status()["loaders"]) == len(layout.shares)
            if backend == "processes":
                assert not any(map(psutil.pid_exists, set(seen) - set(now)))
        info, killed = service._info, processes_of(service)
        trainers = [threads.submit(steps_of, c, STEPS - len(t)) for c, t in zip(clients, taken)]
        kill(*info.loaders)
        if backend == "ray":
            kill(info.registry, info.planner, info.constructors[1][1])
        for rank, trainer in enumerate(trainers):
            taken[rank] += trainer.result(PATIENCE)
        until(lambda: followed() >= set(killed), "successors of all loaders")
        status = service.status()
        assert len(status["loaders"]) == len(layout.shares)
        if backend == "processes":
            with pytest.raises(ConfigurationError, match="of other sources"):
                service.use_loaders(es.SourceLayout.of(["code"], 1))
            # Loaders that cannot begin leave the others alone.
            before = set(psutil.Process().children())
            (tmp_path / "b.jsonl").rename(tmp_path / "moved")
            with pytest.raises(ConfigurationError, match=r"b\.jsonl"):
                service.use_loaders(3)
            assert set(psutil.Process().children()) == before
            (tmp_path / "moved").rename(tmp_path / "b.jsonl")
        for rank, client in enumerate(clients):
            taken[rank] += steps_of(client, 1)
    assert [comparable(each) for each in taken] == in_one_process(job, STEPS + 1)
    assert status["failed"] is None


def scaled_job(folder: Path) -> tuple[es.Job, es.LoaderScaling]:
    """Two loaders are needed from step 12 to 24, and one before and after."""
    usual = {"code": 0.5, "web": 0.4, "books": 0.1}
    schedule = Staged({0: usual, 12: {"code": 0.2, "web": 0.2, "books": 0.6}, 24: usual})
    few = {"samples_per_step": 8, "plans_kept": 8}  # so no more is planned than clients ask for
    job = job_of(folder, mesh=es.Mesh(DP=1), schedule=schedule, **few)
    scaling = es.LoaderScaling(
        job,
        profile_of(job, books=0.03),
        step_seconds=0.1,
        memory=1 << 30,
        workers=0,
        limits=ScalingLimits(most_loaders=2, lead=4, hold=3),
    )
    return job, scaling


@pytest.mark.slow
def test_loaders_come_before_weights_move_and_go_after(tmp_path: Path) -> None:
    job, scaling = scaled_job(tmp_path)
    assert len(scaling.layout.loaders) == 1
    taken: list[Any] = []
    with ProcessService(job, name=f"scaled-{os.getpid()}", loaders=scaling) as service:
        client = service.client(0)
        taken += steps_of(client, 4)
        assert service.status()["scaled"] == []
        taken += steps_of(client, 3)  # nine are planned, and looked at four steps more
        until(lambda: service.status()["scaled"], "more loaders")
        assert len(processes_of(service)) == 2
        taken += steps_of(client, 20)
        until(lambda: len(service.status()["scaled"]) == 2, "fewer loaders")
        assert len(processes_of(service)) == 1
        taken += steps_of(client, 2)
        status = service.status()
    assert comparable(taken) == in_one_process(job, len(taken))[0]
    more, fewer = status["scaled"]
    assert more["loaders"] == [1, 2]
    assert more["step"] < 12
    assert fewer["loaders"] == [2, 1]
    assert fewer["step"] > 24
    assert status["short"] == []
