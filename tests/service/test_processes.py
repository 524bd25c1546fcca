"""The service in processes of this machine, without Ray: the same as in one process."""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray_cluster import HERE, PATIENCE, Process, stop, until
from service_world import (
    Rows,
    comparable,
    in_one_process,
    job_of,
    rows,
    sources,
    steps_of,
    striped,
    tokens_of_row,
    write_parquet,
)

pytest.importorskip("zmq", reason="pyzmq is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError, LoaderDiedError, SampleError
from evenstep.service.backends.processes.process_service import ProcessService
from evenstep.service.planner.planner import Planner
from evenstep.service.remote.channels import SocketChannel
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_host import RoleHost
from evenstep.service.transport.connection import Connections
from evenstep.service.transport.frames import from_frames, to_frames


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> es.Job:
    return job_of(tmp_path_factory.mktemp("sources"), mesh=es.Mesh(DP=2, CP=2))


@pytest.fixture(scope="module")
def service(job: es.Job) -> Iterator[ProcessService]:
    with ProcessService(job, name=own("shared"), loaders=striped(job, 2, 8)) as service:
        yield service


def own(name: str) -> str:
    """A name that no other run of the tests on this machine uses."""
    return f"{name}-{os.getpid()}"


def loaders_of(service: ProcessService) -> list[int]:
    places = [handle.place.known for handle in service._info.loaders]
    return [place.process for place in places if place is not None and place.process]


def test_a_status_is_there_within_a_second_though_a_loader_is_stopped(
    service: ProcessService,
) -> None:
    """The first test of the service: nobody has asked for its status before."""
    with es.StatusEndpoint(service) as endpoint:
        steps_of(service.client(0), 1)
        process = loaders_of(service)[1]
        for asked_before in (False, True):
            stop(process)
            try:
                answers = [
                    timed(endpoint.url + path) for path in ("/status", "/healthz", "/status")
                ]
            finally:
                os.kill(process, signal.SIGCONT)
            assert min(seconds for seconds, _ in answers) < 1  # the others may share the machine
            assert [said["failed"] for _, said in answers] == [None] * 3
            first, last = answers[0][1], answers[2][1]
            (named,) = last["silent"]  # not who waits for it, such as the planner
            assert re.match(rf"Source Loader 1 \(process {process} on .*\)", named)
            running, silent = last["loaders"]
            assert "silent_seconds" not in running
            assert silent["silent_seconds"] > first["loaders"][1]["silent_seconds"] > 0
            assert (silent.get("seconds_old", 0) > silent["silent_seconds"]) is asked_before
            assert ("sources" in silent) is asked_before
            until(lambda: not service.status()["silent"], "an answer of the loader that runs again")


def timed(url: str) -> tuple[float, Any]:
    begin = time.monotonic()
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return time.monotonic() - begin, json.load(answer)


def test_all_steps_are_those_of_one_process_and_nothing_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = job_of(tmp_path, stop="first_exhausted")
    here = tmp_path / "here"
    here.mkdir()
    for name in ("signal", "subprocess", "numpy", "resource"):
        (here / f"{name}.py").write_text(f"open({str(here / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(here)
    with ProcessService(job, name=own("whole"), loaders=striped(job, 3, 8)) as service:
        taken = [comparable(steps_of(service.client(rank))) for rank in range(2)]
        status = service.status()
    assert not (here / "ran").exists()
    assert taken == in_one_process(job)
    assert len(taken[0]) > 3
    assert status["ended"]
    assert status["bytes"]["loader_to_constructor"] > 0
    assert not any(constructor["steps"] for constructor in status["constructors"])
    assert not any(loader["staged_samples"] for loader in status["loaders"])
    json.dumps(status, allow_nan=False)


def test_names_that_run_already_are_refused_and_said_for_one_that_does_not(
    service: ProcessService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=r"'shared-.*' is already running"):
        ProcessService(job_of(tmp_path), name=own("shared"))
    running = (
        rf"no job named 'shard' runs on this machine; running are: .*{own('shared')}.*; nor on "
        r"Ray: .* needs ray: pip install '\.\[service\]' in a clone"
    )
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigurationError, match=running):
        es.attach(name="shard")
    with pytest.raises(ConfigurationError, match=r"no service answers at .*gone\.evenstep"):
        es.Client(tmp_path / "gone.evenstep", rank=0, patience=0.1)


def test_a_missing_file_is_the_error_of_one_process_and_leaves_none_behind(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    given = sources(tmp_path / "gone")
    job = job_of(tmp_path, sources=given)
    (tmp_path / "gone" / "a.parquet").unlink()
    with pytest.raises(ConfigurationError, match="code"):
        ProcessService(job, name=own("missing"))
    assert set(psutil.Process().children()) == before


def test_messages_that_are_none_are_answered_by_errors(service: ProcessService) -> None:
    for endpoint in (service._registry.endpoint, next(iter(service._hosts.values())).endpoint):
        for frames in (
            [b"no pickle"],
            to_frames(None),
            to_frames([]),
            to_frames([("odd", ())]),
            to_frames([("odd", (), None)]),
        ):
            sent = Connections(endpoint).send(frames)
            assert sent.wait(PATIENCE)
            assert from_frames(sent.frames()).error is not None
    assert service.status()["failed"] is None


class Failing:
    """Has a plan, and then none."""

    asked = 0

    def plan(self, step: int) -> str:
        self.asked += 1
        if self.asked > 1:
            raise SampleError("a constructor has failed since")
        return "a plan"

    def close(self) -> None:
        pass


def test_a_plan_that_was_sent_is_not_sent_to_others_after_a_failure() -> None:
    host = RoleHost()
    host.make_role(lambda timer, job: Failing(), None)
    planner = RemoteHandle.at("the Planner", SocketChannel(host.open_sockets("planner")))
    assert planner.send(Planner.plan, 3).result() == "a plan"
    with pytest.raises(SampleError, match="failed since"):
        planner.send(Planner.plan, 3).result()
    host.close()


def ready_standbys(service: ProcessService) -> list[int]:
    return [each["process"] for each in service.status()["standbys"] if each["ready"]]


class Noted(Rows):
    """Notes each process that opens it."""

    def __init__(self, log: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        super().__init__([{"id": n, "length": 2 + n % 9} for n in range(400)])


def test_a_standby_has_opened_the_sources_and_follows_a_loader_and_is_followed(
    tmp_path: Path,
) -> None:
    """Unless it is stopped."""
    log = tmp_path / "opened"
    noted = es.Source("noted", partial(Noted, log), transform=tokens_of_row)
    job = job_of(tmp_path, sources=[noted])
    expected = in_one_process(job, 3)[0]
    log.unlink()
    faults = es.ServiceFaults(standbys=2)
    with ProcessService(job, name=own("standing-by"), faults=faults) as service:

        def standbys() -> list[int]:
            until(lambda: len(ready_standbys(service)) == 2, "two standbys that are ready")
            assert [each["opened"] for each in service.status()["standbys"]] == [1, 1]
            ready, opened = ready_standbys(service), log.read_text().split()
            assert {*map(str, ready)} <= set(opened)
            assert len(opened) == len(set(opened))
            return ready

        client = service.client(0)
        taken, (loader,) = steps_of(client, 1), loaders_of(service)
        stopped, second = standbys()
        stop(stopped)
        os.kill(loader, signal.SIGKILL)
        until(lambda: service.status()["restarts"], "a successor")
        assert loaders_of(service) == [second]
        assert not psutil.pid_exists(stopped)
        taken += steps_of(client, 1)
        unmissed, third = standbys()
        os.kill(unmissed, signal.SIGKILL)
        until(lambda: not psutil.pid_exists(unmissed), "its end")
        assert len(service.status()["restarts"]) == 1
        os.kill(second, signal.SIGKILL)
        taken += steps_of(client, 1)
        until(lambda: len(service.status()["restarts"]) == 2, "its successor")
        restarts = service.status()["restarts"]
    assert comparable(taken) == expected
    followed = [(each["died"]["process"], each["followed_by"]["process"]) for each in restarts]
    assert followed == [(loader, second), (second, third)]
    assert {each["role"] for each in restarts} == {"Source Loader 0"}
    assert all(each["promoted"] for each in restarts)
    assert [each["promotions"] for each in restarts] == [1, 2]


class Broken(logging.Handler):
    def handle(self, record: logging.LogRecord) -> bool:
        raise OSError("the log server is gone")


@pytest.mark.slow
def test_loaders_that_hang_are_followed_though_no_log_can_be_written(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    faults, logs = es.ServiceFaults(hung_after=4.0), es.LogOptions(events="/dev/full")
    logger, broken = logging.getLogger("evenstep"), Broken()
    logger.addHandler(broken)
    try:
        with ProcessService(job, name=own("hung"), faults=faults, logs=logs) as service:
            client = service.client(0)
            taken = steps_of(client, 1)
            for number in range(2):
                (hung,) = loaders_of(service)
                stop(hung)
                taken += steps_of(client, 8)  # more than was ready
                until(lambda n=number: len(service.status()["restarts"]) > n, "a successor")
                restart = service.status()["restarts"][number]
                assert restart["died"]["process"] == hung
                assert restart["number"] == number + 1
                assert not psutil.pid_exists(hung)
    finally:
        logger.removeHandler(broken)
    assert comparable(taken) == in_one_process(job, 17)[0]


def lethal(row: Mapping[str, Any]) -> dict[str, Any]:
    if row["id"] == 1007:
        os.kill(os.getpid(), signal.SIGKILL)
    return tokens_of_row(row)


@pytest.mark.slow
def test_what_kills_each_loader_ends_the_job(tmp_path: Path) -> None:
    job = job_of(tmp_path, sources=sources(tmp_path, transform=lethal))
    with ProcessService(job, name=own("doomed")) as service, ThreadPoolExecutor(2) as threads:
        trainers = [threads.submit(steps_of, service.client(rank)) for rank in range(2)]
        for trainer in trainers:
            with pytest.raises(LoaderDiedError, match=r"Source Loader 0.*died"):
                trainer.result(PATIENCE)


PATHS = os.pathsep.join([str(HERE), *sys.path])
TRAINER = """
import json, sys
import evenstep.service as es
from service_world import steps_of

client = es.Client(*sys.argv[1:], rank=1)
print(json.dumps(len(steps_of(client, 3))), flush=True)
sys.stdin.readline()
try:
    steps_of(client, 3)
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


def limit_of_rows(row: Mapping[str, Any]) -> dict[str, Any]:
    from evenstep.data.parquet import DECODED

    return {**tokens_of_row(row), "limit": DECODED.limit}


@pytest.mark.slow
def test_a_service_leaves_nothing_behind(tmp_path: Path) -> None:
    ProcessService(job_of(tmp_path), name=own("tidy")).close()  # what it loads stays
    threads, files = evensteps_threads(), len(os.listdir("/proc/self/fd"))
    given = sources(tmp_path, transform=limit_of_rows)
    job = job_of(tmp_path, sources=given, collate=list, decoded_bytes=12_345)
    service = ProcessService(job, name=own("tidy"), loaders=2)
    ((micro_batches, _),) = steps_of(service.client(0), 1)
    # Loaders hold as many decoded rows as the job says.
    assert {each["limit"] for samples in micro_batches for each in samples} == {12_345}
    pids = loaders_of(service)
    info = service._info
    channels = [each.channel for each in (info.registry, *info.roles)]
    sockets = [pickle.loads(pickle.dumps(channel)).endpoint.path for channel in channels]
    assert all(map(os.path.exists, sockets))
    trainer = Process(["-c", TRAINER, service.address, own("tidy")], PYTHONPATH=PATHS)
    try:
        assert trainer.json() == 3
        service.close()
        service.close()
        trainer.tell("continue")  # it was idle
        kind, text = trainer.json()
    finally:
        trainer.end()
    assert (kind, text) == ("EvenstepError", f"the service of job {own('tidy')!r} was closed")
    del trainer  # and its pipes
    assert not any(map(psutil.pid_exists, pids))
    assert not os.path.exists(service.address)
    assert not [path for path in sockets if os.path.exists(os.path.dirname(path))]
    until(lambda: not evensteps_threads() - threads, "the end of all threads")
    until(lambda: len(os.listdir("/proc/self/fd")) <= files, "the end of all connections")
    with pytest.raises(ConfigurationError, match="closed"):
        service.client(0)


def evensteps_threads() -> set[threading.Thread]:
    return {each for each in threading.enumerate() if each.name.startswith("evenstep-")}


SCRIPT = """
import os, sys
import numpy as np
import evenstep.service as es

def tokens(row):  # of a script without an importable name
    print("a transform may print")
    return {"input_ids": np.arange(row["length"])}

def strategy(graph, mesh, step):
    return graph.mix().distribute("DP").balance("greedy").plan()

job = es.Job(sources=[es.Source("a", sys.argv[1], transform=tokens)], mesh=es.Mesh(DP=1),
             strategy=strategy, max_tokens=256)
service = es.start(job, backend="processes", name=f"script-{os.getpid()}")
assert service.plan(0) is not None
print("loader", service.status()["loaders"][0]["process"]["process"], flush=True)
if sys.argv[2] == "wait":
    sys.stdin.read()
"""


@pytest.mark.slow
def test_loaders_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", rows(40, 0, 30))
    (tmp_path / "script.py").write_text(SCRIPT)
    scripts = {
        how: subprocess.Popen(
            [sys.executable, str(tmp_path / "script.py"), str(path), how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for how in ("ends without closing", "wait")
    }
    for how, script in scripts.items():
        assert script.stdout is not None
        found = re.match(r"loader (\d+)", script.stdout.readline())
        assert found is not None, how
        if how == "wait":
            script.kill()
        assert script.wait(PATIENCE) == (-signal.SIGKILL if how == "wait" else 0)
        until(lambda pid=int(found[1]): not psutil.pid_exists(pid), f"the end of the loader: {how}")
