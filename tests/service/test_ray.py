"""The service on a real Ray of this machine: the same as in one process, and the same errors.

Tests share one cluster, and those that need trainers one service, as an actor takes a second to
start. What takes longer runs in soak runs alone. That a driver which ends leaves nothing behind is
tested by `test_ray_join`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ray_cluster import HERE, processes, until
from service_world import (
    comparable,
    in_one_process,
    job_of,
    steps_of,
    striped,
)

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.rebalance import plan_rebalance
from evenstep.service.backends.ray import RayService
from evenstep.service.backends.ray.actor_options import cpus_per_actor
from evenstep.service.client.joining import attach
from evenstep.strategy import to_json
from page_code import blocks

PAGE = "service-operation.md"


pytestmark = pytest.mark.usefixtures("ray_of_file")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    return job_of(tmp_path_factory.mktemp("sources"), mesh=es.Mesh(DP=2, CP=2))


@pytest.fixture(scope="module")
def service(job: es.Job) -> Iterator[RayService]:
    with RayService(job, name="shared") as service:
        yield service


RANKS = (3,)
"""Those that take steps of the shared service, in processes of their own."""


@pytest.fixture(scope="module")
def trained(service: RayService) -> Iterator[list[Any]]:
    """The first three steps of each of `RANKS`, while its process still runs."""
    command = [str(HERE / "ray_trainer.py"), service.address, "shared"]
    ranks = [{"RANK": str(rank)} for rank in RANKS]
    with processes([command] * len(ranks), ranks) as started:
        yield [process.json() for process in started]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=repr))


def plans_of(service: Any) -> Iterator[Any]:
    step = 0
    while (plan := service.plan(step)) is not None:
        yield plan
        step += 1


def test_two_loaders_give_the_plans_and_batches_of_one_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, stop="first_exhausted")
    with es.start(job, backend="local") as service:
        plans = [to_json(plan) for plan in plans_of(service)]
    with RayService(job, name="two", loaders=striped(job, 2, 8), constructors=1) as service:
        taken = [comparable(steps_of(service.client(rank))) for rank in range(2)]
        assert taken == in_one_process(job)
        assert [to_json(plan) for plan in plans_of(service)] == plans
        assert len(plans) > 3
        until(lambda: service.status()["ended"], "clients say that they have ended")
        status = service.status()
        assert len(status["loaders"]) == 2
        assert all(loader["prepared"] for loader in status["loaders"])
        assert status["steps"]["exposed_seconds"]["mean"] > 0
        assert {"plan", "fetch", "build"} <= status["steps"]["stage_seconds"].keys()
        assert status["bytes"]["loader_to_constructor"] > 0
        assert not any(constructor["steps"] for constructor in status["constructors"])
        assert not any(loader["staged_samples"] for loader in status["loaders"])
        json.dumps(status, allow_nan=False)


def test_one_loader_gives_the_same_to_other_processes(trained: list[Any], job: es.Job) -> None:
    assert trained == plain(in_one_process(job, 3, RANKS))


def test_those_who_look_see_what_the_owner_sees(service: RayService, trained: list[Any]) -> None:
    def all_told() -> bool:
        steps = {client["rank"]: client["step"] for client in service.status()["clients"]}
        return [steps.get(rank) for rank in RANKS] == [3] * len(RANKS)

    until(all_told, "the third step of all clients")
    with attach(service.address, "shared") as attached:
        status = attached.status()
        assert status["planner"]["drawn"].keys() == {"code", "web", "books"}
        assert status["failed"] is None
        plan, own = attached.plan(1), service.plan(1)
        assert plan is not None
        assert own is not None
        assert to_json(plan) == to_json(own)
    assert service.state_dict(3)["step"] == 3


def test_names(service: RayService, job: es.Job) -> None:
    with pytest.raises(ConfigurationError, match=r"is already running \(started \d\d:\d\d:\d\d\)"):
        RayService(job, name="shared")
    with pytest.raises(ConfigurationError, match=r"no job named 'other'.*running are: shared"):
        attach(service.address, "other")


def test_more_cpus_than_are_free_are_asked_for_as_the_cluster_may_grow(
    service: RayService, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    assert cpus_per_actor(ray, 0.0, 3) == 0.0
    assert not caplog.text
    assert cpus_per_actor(ray, 5.0, 3) == 5.0
    assert "CPUs free: some wait until others end or the cluster grows" in caplog.text
    with pytest.raises(ConfigurationError, match="must be at least 0"):
        cpus_per_actor(ray, -1.0, 3)


ELSEWHERE = """
import json, sys
from service_world import comparable, steps_of
import evenstep.service as es
from evenstep.service.transport import endpoint

endpoint.machine = lambda: "another host"  # whose trainers reach roles by TCP alone
with es.Client(sys.argv[1], rank=int(sys.argv[2])) as client:
    taken = steps_of(client, 3)
assert "ray" not in sys.modules
print(json.dumps(comparable(taken), default=repr))
"""


def test_a_trainer_on_a_host_without_ray_joins_by_a_copy_of_the_services_file(
    service: RayService, job: es.Job, tmp_path: Path
) -> None:
    copy = tmp_path / "copied.evenstep"
    shutil.copy(service.file, copy)
    path = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    with processes([["-c", ELSEWHERE, str(copy), "1"]], [path]) as (trainer,):
        taken = trainer.json()
    assert [taken] == plain(in_one_process(job, 3, [1]))


# Where functions come from, and what is left


@pytest.mark.soak
def test_functions_of_a_script_and_within_functions_travel(tmp_path: Path) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [str(HERE / "ray_main_script.py"), str(tmp_path), address, "0"]
    with processes([command], [{}]) as (script,):
        said = script.json()
    assert said["same"]
    assert {len(ids) for ids in said["first"][0]} <= {2, 3, 4}


# A driver that holds all rollouts: to ranks as Ray's objects, and results back

TRAINING, WIDTH = 3, 4


def losses_of(weight: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    """[tokens]"""
    return (sequence @ weight - 1).square()


def train_rollouts(micro_batches: list[list[Any]], scales: list[float]) -> tuple[Any, Any]:
    """A rank: its gradient, and the loss of each of its sequences."""
    weight = torch.arange(WIDTH, dtype=torch.float64).requires_grad_()
    for sequences, scale in zip(micro_batches, scales, strict=True):
        losses = [losses_of(weight, torch.from_numpy(each)) for each in sequences]
        (torch.cat(losses).mean() * scale).backward()
    results = [
        [float(losses_of(weight.detach(), torch.from_numpy(each)).mean()) for each in sequences]
        for sequences in micro_batches
    ]
    return weight.grad.numpy(), results


def test_ranks_train_on_what_the_driver_gives_them() -> None:
    import ray

    rng = np.random.default_rng(3)
    rollouts = [rng.normal(size=(n, WIDTH)) for n in rng.integers(1, 60, 50)]
    lengths = np.array([len(each) for each in rollouts])
    plan = plan_rebalance(lengths, ranks=TRAINING, max_tokens=100)
    scales = plan.loss_scales(lengths)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
    remote = ray.remote(num_cpus=0)(train_rollouts)
    running = []
    for rank in range(TRAINING):
        own = [[rollouts[n] for n in members] for members in plan.of_rank(rank)]
        running.append(remote.remote(ray.put(own), scales[rank].tolist()))
    gradients, results = zip(*ray.get(running), strict=True)

    weight = torch.arange(WIDTH, dtype=torch.float64).requires_grad_()
    every = list(map(torch.from_numpy, rollouts))
    torch.cat([losses_of(weight, each) for each in every]).mean().backward()
    np.testing.assert_allclose(np.mean(gradients, axis=0), weight.grad.numpy(), rtol=1e-12)
    alone = [float(losses_of(weight.detach(), each).mean()) for each in every]
    assert plan.restore(results) == pytest.approx(alone, rel=1e-12)


# The page on operation


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = [blocks(PAGE, heading)[0] for heading in ("Start", "In the trainer")]
    job = job_of(tmp_path, mesh=es.Mesh(DP=1), stop="first_exhausted")
    saved: list[Any] = []
    weight = torch.zeros(1, requires_grad=True)
    names: dict[str, Any] = {
        "job": job,
        "save": saved.append,
        "model": lambda **batch: SimpleNamespace(loss=weight.sum()),
        "optimizer": torch.optim.SGD([weight]),
    }
    monkeypatch.setenv("RANK", "0")
    code[1] = code[1].replace("1_000", "2")
    try:
        for block in code:
            exec(compile(block, PAGE, "exec"), names)
    finally:
        if "service" in names:
            names["service"].close()
    assert names["step"].rank == 0
    assert [state["step"] for state in saved] == list(range(2, names["step"].step + 2, 2))
