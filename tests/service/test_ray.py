"""The service on a real Ray of this machine: the same as in one process, and the same errors.

Tests share one cluster, and those that need trainers one service, as an actor takes a second to
start. What takes longer is in test_ray_deaths.py.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import HERE, PATIENCE, Process, having, processes, small_cluster, until
from service_world import (
    comparable,
    failing,
    job_of,
    rows,
    sources,
    steps_of,
    striped,
    tokens_of_row,
    write_parquet,
)

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError, EvenstepError, SampleError
from evenstep.service.backends.ray import RayService
from evenstep.service.backends.ray.actor_options import cpus_per_actor
from evenstep.service.backends.ray.channel import SHARED_BYTES
from evenstep.service.client.joining import attach
from evenstep.strategy import to_json

PAGE = HERE.parents[1] / "docs" / "service-operation.md"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    return job_of(tmp_path_factory.mktemp("sources"), mesh=es.Mesh(DP=2, CP=2))


@pytest.fixture(scope="module")
def service(job: es.Job) -> Iterator[RayService]:
    with RayService(job, name="shared") as service:
        yield service


@dataclass
class Trainers:
    """One process for each rank, after its third step."""

    processes: list[Process]
    steps: list[Any]


@pytest.fixture(scope="module")
def trainers(service: RayService, job: es.Job) -> Iterator[Trainers]:
    command = [str(HERE / "ray_trainer.py"), service.address, "shared"]
    ranks = [{"RANK": str(rank)} for rank in range(len(job.tree))]
    with processes([command] * len(ranks), ranks) as started:
        yield Trainers(started, [process.json() for process in started])


def in_one_process(job: es.Job, steps: int | None = None) -> list[Any]:
    """[ranks] the steps of each."""
    with es.start(job, backend="local") as service:
        return [comparable(steps_of(service.client(rank), steps)) for rank in range(len(job.tree))]


def plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=repr))


def plans_of(service: Any) -> Iterator[Any]:
    step = 0
    while (plan := service.plan(step)) is not None:
        yield plan
        step += 1


def test_three_loaders_give_the_plans_and_batches_of_one_process(tmp_path: Path) -> None:
    job = job_of(tmp_path, stop="first_exhausted")
    with es.start(job, backend="local") as service:
        plans = [to_json(plan) for plan in plans_of(service)]
    with RayService(job, name="three", loaders=striped(job, 3, 8), constructors=1) as service:
        assert [comparable(steps_of(service.client(rank))) for rank in range(2)] == in_one_process(
            job
        )
        assert [to_json(plan) for plan in plans_of(service)] == plans
        assert len(plans) > 3
        status = service.status()
        assert len(status["loaders"]) == 3
        assert all(loader["prepared"] for loader in status["loaders"])
        assert status["ended"]
        assert status["steps"]["exposed_seconds"]["largest"] > 0
        assert {"plan", "fetch", "build"} <= status["steps"]["stage_seconds"].keys()
        assert status["bytes"]["loader_to_constructor"] > 0
        assert not any(constructor["steps"] for constructor in status["constructors"])
        assert not any(loader["staged_samples"] for loader in status["loaders"])
        json.dumps(status, allow_nan=False)


@pytest.mark.soak
def test_large_plans_that_constructors_share_are_the_same(tmp_path: Path) -> None:
    given = sources(tmp_path, counts=(900, 700, 800))
    job = job_of(tmp_path, sources=given, samples_per_step=1500, max_tokens=20_000)
    with RayService(job, name="large") as service:
        plan = service.plan(1)
        assert plan is not None
        assert len(pickle.dumps(plan)) > SHARED_BYTES
        taken = [comparable(steps_of(service.client(rank), 2)) for rank in range(2)]
    assert taken == in_one_process(job, 2)


@pytest.mark.soak
def test_a_client_that_is_restarted_gets_the_same_steps_again(
    service: RayService, job: es.Job
) -> None:
    expected = in_one_process(job, 5)[2]
    assert comparable(steps_of(service.client(2), 5)) == expected
    assert comparable(steps_of(service.client(2), 4)) == expected[:4]


def test_one_loader_gives_the_same_to_four_processes(trainers: Trainers, job: es.Job) -> None:
    assert trainers.steps == plain(in_one_process(job, 3))


def test_arrays_of_every_kind_arrive_as_they_were_and_are_the_receivers_own() -> None:
    import numpy as np
    import ray

    def made() -> dict[str, Any]:
        numbers = np.random.default_rng(0)
        lists = np.empty(2, object)
        lists[:] = [[1, 2], [3, 4]]
        return {
            "large": numbers.integers(0, 9, 200_000),
            "turned": numbers.random((3, 50)).T,
            "none": np.zeros((0, 3), np.int32),
            "one": np.array(3),
            "dates": np.array(["2020-01-01"], "datetime64[D]"),
            "texts": np.array(["ab", "c"]),
            "records": np.ones(3, [("a", "i4"), ("b", "f8")]),
            "objects": np.array([1, "a", None], object),
            "lists": lists,
        }

    @ray.remote(num_cpus=0)
    def sent() -> dict[str, Any]:
        from evenstep.service.backends.ray.channel import register_arrays

        register_arrays()
        return made()

    arrays = ray.get(sent.remote(), timeout=PATIENCE)
    for name, expected in made().items():
        assert arrays[name].dtype == expected.dtype
        assert arrays[name].shape == expected.shape
        assert arrays[name].tolist() == expected.tolist()
        assert arrays[name].flags.owndata
        assert arrays[name].flags.writeable


def test_those_who_look_see_what_the_owner_sees(service: RayService, trainers: Trainers) -> None:
    def all_told() -> bool:
        # Rank 2 was taken further above, by a client of this process.
        steps = {client["rank"]: client["step"] for client in service.status()["clients"]}
        return [steps.get(rank) for rank in (0, 1, 3)] == [3] * 3

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


def test_a_client_of_a_rank_that_does_not_exist_is_refused(
    service: RayService, job: es.Job
) -> None:
    said = "rank 9 is not a client.*0-3"
    with es.start(job, backend="local") as local, pytest.raises(ConfigurationError, match=said):
        local.client(9)
    with pytest.raises(ConfigurationError, match=said):
        service.client(9)
    with pytest.raises(ConfigurationError, match=said):
        es.Client(service.address, "shared", 9)
    with pytest.raises(ConfigurationError, match="DP=2 must be from 0 to 1"):
        service.client(DP=2)


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
    assert service.file is not None
    copy = tmp_path / "copied.evenstep"
    shutil.copy(service.file, copy)
    commands = [["-c", ELSEWHERE, str(copy), str(rank)] for rank in (0, 3)]
    path = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    with processes(commands, [path] * len(commands)) as trainers:
        taken = [trainer.json() for trainer in trainers]
    expected = plain(in_one_process(job, 3))
    assert taken == [expected[0], expected[3]]


@pytest.mark.soak
def test_nothing_changes_when_a_loader_and_the_registry_die(
    service: RayService, trainers: Trainers, job: es.Job
) -> None:
    """Runs last of those that share the service."""
    process = service.status()["loaders"][0]["process"]["process"]
    registry = service._info.registry.place.known
    assert registry is not None
    assert registry.process is not None
    os.kill(process, signal.SIGKILL)
    os.kill(registry.process, signal.SIGKILL)
    for trainer in trainers.processes:
        trainer.tell("continue")
    more = [trainer.json() for trainer in trainers.processes]
    both = [[*first, *then] for first, then in zip(trainers.steps, more)]
    assert both == plain(in_one_process(job, 6))
    for trainer, steps in zip(trainers.processes, trainers.steps):
        trainer.tell("end")
        assert trainer.json() == steps  # what it took is still what it was
    assert service.status()["failed"] is None
    # The name of a job that has ended can be used again.
    service.close()
    with RayService(service.job, name="shared", constructors=1) as again:
        assert steps_of(again.client(0), 1)


# What is wrong with a job is said alike

Misuse = Callable[[Path, Callable[[es.Job], Any]], Any]


def no_such_axis(graph: Any, mesh: Any, step: int) -> Any:
    return graph.mix().distribute("EP").plan()


def an_unknown_axis(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, strategy=no_such_axis))


def weights_of_zero(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, schedule={"code": 0.0, "web": 0.0}))


def another_schema(folder: Path, first_step: Any) -> None:
    write_parquet(folder / "mixed" / "0.parquet", rows(20, 0, 9))
    write_parquet(folder / "mixed" / "1.parquet", [{"id": 1, "words": "two"}])
    path = str(folder / "mixed" / "*.parquet")
    first_step(job_of(folder, sources=[es.Source("mixed", path, transform=tokens_of_row)]))


def a_missing_file(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, sources=[es.Source("gone", str(folder / "gone.parquet"))]))


def a_file_that_goes_missing(folder: Path, first_step: Any) -> None:
    path = write_parquet(folder / "here.parquet", rows(20, 0, 9))
    job = job_of(folder, sources=[es.Source("gone", str(path), transform=tokens_of_row)])
    path.unlink()
    first_step(job)


def a_mesh_of_another_world(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, mesh=es.Mesh(DP=2, CP=2, world_size=6)))


def a_transform_that_raises(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, sources=sources(folder, transform=failing)))


def a_transform_that_exits(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, sources=sources(folder, transform=exiting)))


def exiting(row: Any) -> Any:
    if row["id"] % 1000 == 17:
        raise SystemExit(3)
    return tokens_of_row(row)


def a_collate_that_raises(folder: Path, first_step: Any) -> None:
    first_step(job_of(folder, collate=refused))


def refused(samples: Any) -> Any:
    raise ValueError("no such batch")


@pytest.mark.parametrize(
    ("misuse", "kind", "said"),
    [
        pytest.param(
            *(an_unknown_axis, ConfigurationError, r"axis 'EP' must be one of"),
            marks=pytest.mark.soak,
        ),
        (weights_of_zero, ConfigurationError, r"weights.*sum to 0"),
        (another_schema, ConfigurationError, r"mixed.*1\.parquet"),
        (a_missing_file, ConfigurationError, r"gone\.parquet"),
        (a_file_that_goes_missing, ConfigurationError, r"here\.parquet"),
        (a_mesh_of_another_world, ConfigurationError, r"4 clients and the job 6"),
        (a_transform_that_raises, SampleError, r"failing.*(code|web|books)\[\d\]\[\d+\].*bad row"),
        pytest.param(
            *(a_transform_that_exits, SampleError, r"exiting raised SystemExit.*\[\d\]\[\d+\]: 3"),
            marks=pytest.mark.soak,
        ),
        pytest.param(
            *(a_collate_that_raises, EvenstepError, r"micro-batch 0.*\[\d\]\[\d+\].*no such batch"),
            marks=pytest.mark.soak,
        ),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_misuse_raises_the_same_error_on_both(
    misuse: Misuse, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    def on(start: Callable[[es.Job], Any]) -> str:
        def first_step(job: es.Job) -> None:
            with start(job) as service:
                steps_of(service.client(1), 30)

        with pytest.raises(kind, match=said) as raised:
            misuse(tmp_path, first_step)
        assert type(raised.value).__module__ == "evenstep.errors"
        return f"{type(raised.value).__name__}: {raised.value}"

    expected = on(lambda job: es.start(job, backend="local"))
    assert on(lambda job: RayService(job, name="wrong", constructors=1)) == expected


# Where functions come from, and what is left


@pytest.mark.soak
def test_functions_of_a_script_and_within_functions_travel(tmp_path: Path, cluster: None) -> None:
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [str(HERE / "ray_main_script.py"), str(tmp_path), address, "0"]
    with processes([command], [{}]) as (script,):
        said = script.json()
    assert said["same"]
    assert {len(ids) for ids in said["first"][0]} <= {2, 3, 4}


@pytest.mark.parametrize("number", [signal.SIGINT])
def test_nothing_is_left_when_the_driver_is_asked_to_end(
    tmp_path: Path, number: signal.Signals
) -> None:
    _ends_with_its_driver(tmp_path, number)


@pytest.mark.soak
def test_nothing_is_left_when_the_driver_is_terminated(tmp_path: Path) -> None:
    _ends_with_its_driver(tmp_path, signal.SIGTERM)


def _ends_with_its_driver(folder: Path, number: signal.Signals) -> None:
    token = f"EVENSTEP_TEST_{os.getpid()}_{number}"
    driver = folder / "driver.py"
    driver.write_text(
        f"import signal, sys, time, pathlib\nsys.path.insert(0, {str(HERE)!r})\n"
        # A suite that is run in the background has interrupts ignored, which its children inherit.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import evenstep.service as es\nfrom service_world import job_of\n"
        "if __name__ == '__main__':\n"
        f"    job = job_of(pathlib.Path({str(folder)!r}), workers=1)\n"
        "    options = {'num_cpus': 2, 'object_store_memory': 100_000_000}\n"
        "    with es.start(\n"
        "        job, address='local', constructors=1, ray_options=options\n"
        "    ) as service:\n"
        "        next(service.client(0))\n"
        "        print('on', flush=True)\n"
        "        time.sleep(600)\n"
    )
    process = Process([str(driver)], new_session=True, **{token: "1"})
    try:
        assert process.line() == "on\n"
        assert len(having(token)) > 3
        process.popen.send_signal(number)
        until(lambda: not having(token), "the end of all processes")
    finally:
        for left in having(token):
            left.kill()
        process.end()


# The page on operation


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    job = job_of(tmp_path, mesh=es.Mesh(DP=1), stop="first_exhausted")
    saved: list[Any] = []
    names: dict[str, Any] = {"job": job, "train": list, "save": saved.append}
    monkeypatch.setenv("RANK", "0")
    assert len(blocks) == 3
    blocks[1] = blocks[1].replace("1_000", "2")
    try:
        for block in blocks[:2]:  # the third is of a backend that changes its mesh
            exec(compile(block, PAGE.name, "exec"), names)
    finally:
        if "service" in names:
            names["service"].close()
    assert names["step"].rank == 0
    assert [state["step"] for state in saved] == list(range(2, names["step"].step + 2, 2))
