"""A role that is stopped makes the service wait, and never in silence."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import PATIENCE, stop, until
from service_world import (
    broadcast_at_tp,
    comparable,
    in_one_process,
    job_of,
    sources,
    steps_of,
    tokens_of_row,
)
from test_processes import loaders_of, own

pytest.importorskip("zmq", reason="pyzmq is not installed")

import evenstep.service as es
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.backends.processes.process_service import ProcessService
from evenstep.service.backends.ray import RayService
from evenstep.service.client.joining import attach


@contextmanager
def stopped(process: int) -> Iterator[None]:
    stop(process)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def process_of(service: Any, role: str) -> int:
    if role == "registry":
        known = service._info.registry.place.known
        assert known is not None
        return int(known.process or 0)
    roles = service.status()[role]
    return int((roles if isinstance(roles, dict) else roles[-1])["process"]["process"])


def waits_in(log: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in log.records if "has waited" in r.getMessage()]


@pytest.fixture(scope="module", params=["processes", pytest.param("ray", marks=pytest.mark.soak)])
def service(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Any]:
    """Its ranks 0 and 2 take steps."""
    if request.param == "ray":
        request.getfixturevalue("ray_of_file")
    folder = tmp_path_factory.mktemp("sources")
    job = job_of(folder, mesh=es.Mesh(DP=2, TP=2), strategy=broadcast_at_tp)
    options: dict[str, Any] = {"backend": request.param, "name": f"silence-{os.getpid()}"}
    faults = es.ServiceFaults(warn_after=1.0)
    with es.start(job, constructors=1, faults=faults, **options) as service:
        yield service


STEPS = 24
"""More than are fetched ahead."""
ASKED = {
    "loaders": "Source Loader 0",
    "planner": "the Planner",
    "constructors": "Data Constructor 0",
}


@pytest.mark.parametrize(
    ("role", "warnings"),
    [
        # First, while no constructor has plans of the steps that are asked for.
        pytest.param("planner", 2, marks=pytest.mark.soak),
        ("loaders", 1),
        pytest.param("constructors", 2, marks=pytest.mark.soak),
    ],
)
def test_clients_say_that_they_wait_and_status_names_the_role_that_is_stopped(
    role: str, warnings: int, service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if role != "loaders" and not isinstance(service, RayService):
        pytest.skip("a thread of this process")
    caplog.set_level(logging.WARNING, "evenstep")
    client = service.client(2)
    taken = steps_of(client, 1)
    caplog.clear()  # the first step may be slow
    process = process_of(service, role)
    named = rf"{ASKED[role]} \(process {process} on \S+\)"
    with ThreadPoolExecutor(1) as trainer, stopped(process):
        waiting = trainer.submit(steps_of, client, STEPS - 1)
        until(lambda: len(waits_in(caplog)) >= warnings, "a warning")
        status = json.loads(json.dumps(service.status(), allow_nan=False))
        assert not waiting.done()
        os.kill(process, signal.SIGCONT)
        taken += waiting.result(PATIENCE)
    for text in waits_in(caplog)[:warnings]:
        assert re.match(r"rank 2 has waited \d+ s for 'deliver' of step \d+ of Data Const", text)
    told = [int(re.findall(r"waited (\d+) s", text)[0]) for text in waits_in(caplog)]
    assert told[0] >= 1
    assert warnings == 1 or told[1] >= 2 * told[0] - 1  # both are rounded
    (silent,) = status["silent"]
    assert re.fullmatch(named, silent)
    until(lambda: not service.status()["silent"], "an answer of the role that runs again")
    assert comparable(taken) == in_one_process(service.job, STEPS, ranks=[2])[0]


@pytest.mark.soak
@pytest.mark.usefixtures("ray_of_file")
def test_a_registry_that_is_stopped_stops_no_steps_and_is_named(tmp_path: Path) -> None:
    with RayService(
        job_of(tmp_path), name="headless", faults=es.ServiceFaults(warn_after=1.0)
    ) as service:
        client = service.client(0)
        steps_of(client, 1)
        process = process_of(service, "registry")
        with stopped(process):
            assert len(steps_of(client, 3)) == 3
            with pytest.raises(EvenstepError, match=rf"registry \(process {process} on .* stopped"):
                service.status()
            with pytest.raises(EvenstepError, match="'headless' is on this cluster, but its reg"):
                attach(service.address, "headless")
            with pytest.raises(EvenstepError, match="choose another name"):
                RayService(job_of(tmp_path), name="headless")


@pytest.mark.soak
@pytest.mark.usefixtures("ray_of_file")
def test_a_service_with_a_stopped_role_ends(tmp_path: Path) -> None:
    with RayService(job_of(tmp_path), name="ends", loaders=2) as service:
        process = process_of(service, "loaders")
        stop(process)
    until(lambda: not Path(f"/proc/{process}").exists(), "the end of the stopped loader")


@pytest.mark.soak
@pytest.mark.usefixtures("ray_of_file")
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


class Tokens:
    """A transform that is not received while a file is there."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, row: Any) -> Any:
        return tokens_of_row(row)

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)
        while self.file.exists():
            time.sleep(0.05)


@pytest.mark.slow
def test_who_waits_is_told_that_a_loader_has_died_and_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "slow"
    given = sources(tmp_path, transform=Tokens(file))
    job = job_of(tmp_path, sources=given, buffer_size=1)
    with (
        ProcessService(
            job, name=own("missing"), faults=es.ServiceFaults(warn_after=0.5)
        ) as service,
        ThreadPoolExecutor(1) as trainer,
    ):
        client = service.client(0)
        taken = steps_of(client, 1)
        (loader,) = loaders_of(service)
        file.touch()
        os.kill(loader, signal.SIGKILL)
        waiting = trainer.submit(steps_of, client, 5)
        named = f"Source Loader 0 (process {loader} on "

        def told(by: str) -> bool:
            """By one who waits, and by the watch over loaders."""
            return any(by in line for line in caplog.messages)

        try:
            until(lambda: told("rank 0 has waited") and told(f"{named}"), "a warning")
            (restarting,) = service.status()["restarting"]
            assert restarting.startswith(named)
            assert restarting.endswith("s ago, and no process plays its role yet")
            assert not waiting.done()
        finally:
            file.unlink()
        taken += waiting.result(PATIENCE)
        assert service.status()["restarting"] == []
    assert comparable(taken) == in_one_process(job, 6)[0]
    assert {record.levelno for record in caplog.records} <= {logging.INFO, logging.WARNING}


# Saving


def test_all_ranks_save_together_and_a_resumed_job_goes_on_exactly(service: Any) -> None:
    whole = in_one_process(service.job, 7, ranks=(0, 2))
    clients = [service.client(rank) for rank in (0, 2)]
    states: list[Any] = []

    def train(client: es.RankClient) -> list[Any]:
        taken = []
        for batches, step in client:
            taken.append((batches, step))
            time.sleep(0.05 * client.rank)  # ranks are apart
            if step.step == 2:
                states.append(client.common_state())
            if step.step == 4:
                return comparable(taken)
        return []

    with ThreadPoolExecutor(2) as trainers:
        assert list(trainers.map(train, clients)) == [steps[:5] for steps in whole]
    assert states[0] == states[1]
    assert states[0]["step"] == 3
    state = json.loads(json.dumps(states[0]))
    rest = in_one_process(service.job, 4, ranks=(0, 2), state=state)
    assert rest == [steps[3:] for steps in whole]


def test_ranks_that_save_at_different_steps_are_named(
    service: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "evenstep")
    first, second = (service.client(rank) for rank in (0, 2))
    with pytest.raises(ConfigurationError, match="rank 1 takes no steps"):
        service.client(1).common_state()
    steps_of(first, 5)  # beyond those where all have met
    steps_of(second, 4)
    with pytest.raises(
        ConfigurationError, match=r"rank 2 at step 4, rank 0 at step 5.*common_state"
    ):
        service.state_dict()
    with ThreadPoolExecutor(2) as trainers:
        # One waits, and says for what.
        waits = trainers.submit(first.common_state)
        until(lambda: waits_in(caplog), "a warning")
        assert "for 'common_state' of step 5 of the registry" in waits_in(caplog)[0]
        # The other comes at another step.
        with pytest.raises(
            ConfigurationError, match="called by rank 2 at step 4, rank 0 at step 5"
        ):
            second.common_state()
        with pytest.raises(ConfigurationError, match="after the same step"):
            waits.result(PATIENCE)
        # Or it goes on, and will not come.
        waits = trainers.submit(first.common_state)
        steps_of(second, 2)
        with pytest.raises(
            ConfigurationError, match="rank 0 at step 5, and not by rank 2 at step 6"
        ):
            waits.result(PATIENCE)
        # The client of a rank that is started again waits no more.
        steps_of(first, 2)
        waits = trainers.submit(first.common_state)
        until(lambda: len(waits_in(caplog)) > 2, "another warning")
        service.client(0)
        with pytest.raises(EvenstepError, match="rank 0 has a newer client"):
            waits.result(PATIENCE)
