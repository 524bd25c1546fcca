"""The service on a real Ray of this machine: the same as in one process, whoever is killed.

Tests share one cluster and one service, as an actor takes a second to start. That a driver which
ends leaves nothing behind is tested by `test_ray_join`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from ray_cluster import PATIENCE, until
from service_world import steps_of

pytest.importorskip("ray", reason="ray is not installed")

from chaos_trainer import line_of
from ray_chaos import chaos_job, play, undisturbed

import evenstep.service as es
from evenstep.errors import ConfigurationError
from evenstep.service.backends.ray import RayService
from evenstep.service.backends.ray.actor_options import ActorPlacement, cpus_per_actor
from evenstep.service.client.joining import attach
from evenstep.strategy import to_json
from page_code import blocks

PAGE = "service-operation.md"


pytestmark = pytest.mark.usefixtures("ray_of_file")


STEPS = 40
EVENTS = "events.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def job(folder: Path) -> es.Job:
    return chaos_job(folder, prefetch=2, steps=STEPS, mesh={"DP": 2})


@pytest.fixture(scope="module")
def expected(job: es.Job) -> list[list[Any]]:
    """[ranks] what each gets in a run in one process."""
    return undisturbed(job, STEPS)


@pytest.fixture(scope="module")
def service(job: es.Job, folder: Path) -> Iterator[RayService]:
    """As the page on operation starts one, and with a standby."""
    more = "loaders=2, faults=faults, logs=logs)"
    (code, *_) = blocks(PAGE, "Start")
    assert "loaders=2)" in code
    logs = es.LogOptions(events=folder / EVENTS)
    names: dict[str, Any] = {"job": job, "logs": logs}
    names["faults"] = es.ServiceFaults(standbys=1)
    try:
        exec(compile(code.replace("loaders=2)", more), PAGE, "exec"), names)
        yield names["service"]
    finally:
        if "service" in names:
            names["service"].close()


def test_a_client_has_the_file_alone_and_those_who_look_see_what_the_owner_sees(
    service: RayService, folder: Path, expected: list[Any]
) -> None:
    copy = folder / "copied.evenstep"
    shutil.copy(service.file, copy)
    with es.Client(copy, rank=1) as client:
        taken = steps_of(client, 3)
        told = [line_of(step, batches) for batches, step in taken]
        assert plain(told) == expected[1][:3]

        def third_step() -> bool:
            return [each["step"] for each in service.status()["clients"]] == [3]

        until(third_step, "the third step of the client")
        with attach(service.address, "pretrain") as attached:
            status = attached.status()
            assert status["planner"]["drawn"].keys() == {"code", "web", "books"}
            assert status["failed"] is None
            plan, own = attached.plan(1), service.plan(1)
            assert plan is not None
            assert own is not None
            assert to_json(plan) == to_json(own)
    assert service.state_dict(3)["step"] == 3
    assert len(status["loaders"]) == 2
    assert status["steps"]["exposed_seconds"]["mean"] > 0
    assert {"plan", "fetch", "build"} <= status["steps"]["stage_seconds"].keys()
    assert status["bytes"]["loader_to_constructor"] > 0
    json.dumps(status, allow_nan=False)


class Enough(Exception):
    """Ends the loop of the page, whose job has no end."""


def test_the_trainer_of_the_page_runs(service: RayService, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []

    def save(state: Any) -> None:
        saved.append(state["step"])
        if len(saved) == 2:
            raise Enough

    weight = torch.zeros(1, requires_grad=True)
    names: dict[str, Any] = {
        "es": es,
        "address": service.address,
        "save": save,
        "model": lambda **batch: SimpleNamespace(loss=weight.sum()),
        "optimizer": torch.optim.SGD([weight]),
    }
    monkeypatch.setenv("RANK", "1")
    (code,) = blocks(PAGE, "In the trainer")

    def other_rank() -> None:
        client = service.client(0)
        for _ in range(2):
            steps_of(client, 2)
            client.common_state()

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(other_rank)
        with pytest.raises(Enough):
            exec(compile(code.replace("1_000", "2"), PAGE, "exec"), names)
        other.result(PATIENCE)
    assert names["step"].rank == 1
    assert saved == [2, 4]


def test_names(service: RayService, job: es.Job) -> None:
    with pytest.raises(ConfigurationError, match=r"is already running \(started \d\d:\d\d:\d\d\)"):
        RayService(job, name="pretrain")
    with pytest.raises(ConfigurationError, match=r"no job named 'other'.*running are: .*pretrain"):
        attach(service.address, "other")


def test_more_cpus_than_are_free_are_asked_for_as_the_cluster_may_grow() -> None:
    import ray

    assert cpus_per_actor(ray, 0.0, 3) == 0.0
    assert cpus_per_actor(ray, 5.0, 3) == 5.0
    with pytest.raises(ConfigurationError, match="must be at least 0"):
        cpus_per_actor(ray, -1.0, 3)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"trainers": {}}, "placement has 'trainers'"),
        ({"constructors": [{}]}, r"placement\['constructors'\] has 1 entries for 2 actors"),
    ],
)
def test_a_placement_that_cannot_be_had_is_refused(given: Any, error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        ActorPlacement(given, loaders=3, constructors=2)


def test_trainers_get_what_one_process_gives_though_one_process_after_another_is_killed(
    service: RayService, folder: Path, expected: list[Any]
) -> None:
    """One of them joins by the address of the cluster; the other is on a host without Ray."""
    kinds = ("loader", "standby", "planner", "constructor", "registry", "trainer")

    def noticed(event: str, role: str) -> bool:
        lines = map(json.loads, (folder / EVENTS).read_text().splitlines())
        return any(event == line["event"] and role == line["role"] for line in lines)

    def events() -> Iterator[tuple[str, str, float]]:
        for kind in kinds:
            yield kind, "killed", 0.5
            # A standby that dies while it takes over is not promoted.
            until(lambda: noticed("promoted", "Source Loader 0"), "the promotion")

    chaos = play(service, folder, events=events(), expected=expected, step_seconds=0.4)
    assert len(chaos.happened) == len(kinds)
    for role in ("the Planner", "Data Constructor 0"):
        until(lambda role=role: noticed("restarted", role), role)


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value))
