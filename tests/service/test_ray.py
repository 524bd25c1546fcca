"""The service on a real Ray of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")
pytest.importorskip("ray", reason="ray is not installed")

import ray
from service_world import job_of, sources, steps_of, told

import evenstep.service as es
from evenstep.errors import ConfigurationError, LoaderDiedError, SampleError
from evenstep.graph import to_json
from evenstep.service.ray import RayService, attach

pytestmark = pytest.mark.soak  # each actor imports torch, so these take minutes

HERE = Path(__file__).parent
SETTLED = 20.0  # seconds that processes may take to be gone


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
        object_store_memory=150_000_000,
    )  # fmt: skip
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    return job_of(tmp_path_factory.mktemp("sources"), mesh=es.Mesh(DP=2, CP=2))


@pytest.fixture(scope="module")
def service(job: es.Job) -> Iterator[RayService]:
    with RayService(job, name="shared") as service:
        yield service


@dataclass
class Trainers:
    """One process for each rank, behind its third step."""

    processes: list[subprocess.Popen[str]]
    steps: list[Any]


@pytest.fixture(scope="module")
def trainers(service: RayService, job: es.Job) -> Iterator[Trainers]:
    processes = []
    try:
        for rank in range(len(job.tree)):
            command = [sys.executable, str(HERE / "ray_trainer.py"), service.address, "shared"]
            processes.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, "RANK": str(rank)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        yield Trainers(processes, [json.loads(process.stdout.readline()) for process in processes])  # type: ignore[union-attr]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def in_one_process(job: es.Job, steps: int | None = None) -> list[Any]:
    """[ranks] what each is told."""
    with es.start(job, backend="local") as service:
        return [told(steps_of(service.client(rank), steps)) for rank in range(len(job.tree))]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=repr))


def test_eight_loaders_give_the_plans_and_batches_of_one_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, stop="first_exhausted")
    with es.start(job, backend="local") as service:
        plans = [to_json(plan) for plan in iter_plans(service)]
    with RayService(job, name="eight", loaders=8, constructors=1, stripe=8) as service:
        assert [told(steps_of(service.client(rank))) for rank in range(2)] == in_one_process(job)
        assert [to_json(plan) for plan in iter_plans(service)] == plans
        assert len(plans) > 3
        status = service.status()
        assert len(status["loaders"]) == 8
        assert all(loader["prepared"] for loader in status["loaders"])
        assert status["ended"]
        assert status["steps"]["exposed_seconds"]["largest"] > 0
        assert {"plan", "fetch", "build"} <= status["steps"]["stage_seconds"].keys()
        assert status["bytes"]["loader_to_constructor"] > 0
        json.dumps(status, allow_nan=False)


def iter_plans(service: Any) -> Iterator[Any]:
    step = 0
    while (plan := service.plan(step)) is not None:
        yield plan
        step += 1


def test_one_loader_gives_the_same_to_four_processes(trainers: Trainers, job: es.Job) -> None:
    assert trainers.steps == plain(in_one_process(job, 3))


def test_those_who_look_see_what_the_owner_sees(service: RayService, trainers: Trainers) -> None:
    with attach(service.address, "shared") as attached:
        deadline = time.monotonic() + 20
        status = attached.status()
        while [client["step"] for client in status["clients"]] != [3] * 4:  # told on the side
            assert time.monotonic() < deadline, status["clients"]
            time.sleep(0.1)
            status = attached.status()
        assert status["planner"]["drawn"].keys() == {"code", "web", "books"}
        plan, own = attached.plan(1), service.plan(1)
        assert plan is not None
        assert own is not None
        assert to_json(plan) == to_json(own)
    assert service.state_dict() == service.state_dict(3)


def test_names(service: RayService, job: es.Job) -> None:
    with pytest.raises(ConfigurationError, match="runs on this cluster already"):
        RayService(job, name="shared")
    with pytest.raises(ConfigurationError, match=r"no job named 'other'.*running are: shared"):
        attach(service.address, "other")
    with pytest.raises(ConfigurationError, match="rank"):
        service.client(9)
    with pytest.raises(ConfigurationError, match="choose at most"):
        RayService(job, name="greedy", cpus=5)


def test_a_killed_loader_is_named_to_every_client(service: RayService, trainers: Trainers) -> None:
    """Runs last of those that share the service."""
    process = service.status()["loaders"][0]["process"]["process"]
    os.kill(process, signal.SIGKILL)
    for trainer in trainers.processes:
        assert trainer.stdin is not None
        trainer.stdin.write("go on\n")
        trainer.stdin.flush()
    for trainer in trainers.processes:
        assert trainer.stdout is not None
        kind, text, seconds = json.loads(trainer.stdout.readline())
        assert kind == "LoaderDiedError"
        assert f"Source Loader 0 (process {process}" in text
        assert seconds < 10
    with pytest.raises(LoaderDiedError, match=f"process {process} "):
        next(service.client(0))
    # The name of the dead one is in nobody's way.
    service.close()
    with RayService(service.job, name="shared", constructors=1) as again:
        assert steps_of(again.client(0), 1)


def test_a_bad_row_is_told_of_by_source_and_index(tmp_path: Path) -> None:
    from service_world import failing

    job = job_of(tmp_path, sources=sources(tmp_path, transform=failing))
    with (
        RayService(job, name="bad", constructors=1) as service,
        pytest.raises(SampleError, match=r"a bad row"),
    ):
        steps_of(service.client(1), 50)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_driver_is_asked_to_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    token = f"EVENSTEP_TEST_{os.getpid()}_{number}"
    driver = tmp_path / "driver.py"
    driver.write_text(
        f"import sys, time, pathlib\nsys.path.insert(0, {str(HERE)!r})\n"
        "from service_world import job_of\nfrom evenstep.service.ray import start\n"
        "if __name__ == '__main__':\n"
        f"    job = job_of(pathlib.Path({str(tmp_path)!r}), workers=1)\n"
        "    options = {'num_cpus': 2, 'object_store_memory': 100_000_000}\n"
        "    with start(job, address='local', constructors=1, ray_options=options) as service:\n"
        "        next(service.client(0))\n"
        "        print('on', flush=True)\n"
        "        time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, str(driver)],
        env={**os.environ, token: "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        assert len(having(token)) > 3
        process.send_signal(number)
        process.wait(timeout=SETTLED)
        until = time.monotonic() + SETTLED
        while having(token) and time.monotonic() < until:
            time.sleep(0.2)
        assert [p.info for p in having(token)] == []
    finally:
        for left in having(token):
            left.kill()
        process.communicate()


def having(token: str) -> list[psutil.Process]:
    """Processes whose environment has a variable."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        with suppress(psutil.Error):
            if token in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
