"""Four trainers on Ray while processes are killed and stopped: each gets, step by step, what it
gets in a run without faults. A long run prints how long the slowest rank stood still after each::

    EVENSTEP_SOAK_SECONDS=1800 pytest -m soak -s tests/service/test_ray_chaos.py
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from chaos_trainer import line_of
from ray_cluster import HERE, PATIENCE, Process, small_cluster
from service_world import job_of, sources

pytest.importorskip("ray", reason="ray is not installed")

import evenstep.service as es
from evenstep.service.ray import RayService

SOAK_SECONDS = float(os.environ.get("EVENSTEP_SOAK_SECONDS", 600))
STEP_SECONDS = 0.5  # of training
RANKS = 4
KINDS = (
    *("loader", "two loaders", "worker", "standby"),
    *("constructor", "planner", "registry", "trainer"),
)


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    with small_cluster():
        yield


class Chaos:
    """A service, its trainers, and what happens to them."""

    def __init__(self, service: RayService, folder: Path, steps: int) -> None:
        self._service, self._steps = service, steps
        self.files = [folder / f"{rank}.jsonl" for rank in range(RANKS)]
        self.trainers = [self._trainer(rank) for rank in range(RANKS)]
        self.happened: list[tuple[str, float]] = []
        self.promoted = 0
        """Standbys that have followed loaders."""

    def _trainer(self, rank: int) -> Process:
        given = [self._service.address, self._service.name, str(self._steps), str(STEP_SECONDS)]
        script = str(HERE / "chaos_trainer.py")
        return Process([script, *given, str(self.files[rank])], RANK=str(rank))

    def victims(self, kind: str, draw: random.Random) -> list[int]:
        """Processes that die or stop together."""
        status = self._service.status()
        loaders = [each.get("process", {}).get("process") for each in status["loaders"]]
        if kind == "trainer":
            return [draw.choice(self.trainers).popen.pid]
        if kind == "standby":
            return [each["process"] for each in status["standbys"] if each["ready"]][:1]
        if kind == "registry":
            known = self._service._info.registry.place.known
            return [] if known is None or known.process is None else [known.process]
        if kind == "worker":
            with suppress(psutil.Error):
                return [draw.choice(psutil.Process(draw.choice(loaders)).children()).pid]
        if kind in ("planner", "constructor"):
            role = status["planner"] if kind == "planner" else draw.choice(status["constructors"])
            loaders = [role.get("process", {}).get("process")]
        found = [pid for pid in loaders if pid is not None]
        return found if kind == "two loaders" else found[:1]

    def happen(self, kind: str, how: str, draw: random.Random) -> None:
        pids = self.victims(kind, draw)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        self.happened.append((f"{kind} {how}", time.time()))
        if how == "stopped":
            time.sleep(5 if draw.random() < 0.5 else 20)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def go_on(self) -> bool:
        """Starts trainers again that were killed; whether any still runs."""
        for rank, trainer in enumerate(self.trainers):
            code = trainer.popen.poll()
            if code == -signal.SIGKILL:
                self.trainers[rank] = self._trainer(rank)
            else:
                assert code in (None, 0), f"rank {rank} ended with {code}"
        return any(trainer.popen.poll() is None for trainer in self.trainers)

    def lines(self) -> list[list[dict[str, Any]]]:
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in self.files]

    def stalls(self) -> dict[str, list[float]]:
        """By what has happened, seconds by which the slowest rank waited longer than usual in the
        time after it, until the next."""
        waits = [(line["at"], line["waited"]) for lines in self.lines() for line in lines]
        usual = statistics.median(waited for _, waited in waits)
        found: dict[str, list[float]] = {}
        ends = [when for _, when in self.happened[1:]] + [time.time()]
        for (what, when), end in zip(self.happened, ends):
            longest = max((waited for at, waited in waits if when < at < end), default=0.0)
            found.setdefault(what, []).append(max(longest - usual, 0.0))
        return found


def slow_tokens(row: Any) -> dict[str, Any]:
    time.sleep(0.002)
    return {"input_ids": [row["id"], *range(1, row["length"])]}


def chaos_job(folder: Path, prefetch: int) -> es.Job:
    given = sources(folder, counts=(400, 300, 300), transform=slow_tokens)
    mesh = es.Mesh(DP=2, CP=2)
    return job_of(folder, sources=given, mesh=mesh, workers=1, prefetch=prefetch)


def undisturbed(job: es.Job, steps: int) -> list[list[Any]]:
    """[ranks] what each gets, as it is written."""
    plain: list[list[Any]] = [[] for _ in range(RANKS)]
    with es.start(job, backend="local") as local:
        clients = [local.client(rank) for rank in range(RANKS)]
        for _ in range(steps):  # together, as plans are not kept for ever
            for lines, client in zip(plain, clients):
                batches, step = next(client)
                lines.append(line_of(step, batches))
    return json.loads(json.dumps(plain))  # type: ignore[no-any-return]


def run(
    folder: Path,
    *,
    prefetch: int,
    standbys: int,
    steps: int,
    events: Iterator[tuple[str, str, float]],
) -> Chaos:
    """Plays the events, of which each has a kind, what happens, and the seconds to wait before."""
    job, draw = chaos_job(folder, prefetch), random.Random(prefetch)
    expected = undisturbed(job, steps)
    name = f"chaos-{prefetch}-{standbys}"
    log = folder / "events.jsonl"
    with RayService(job, name=name, loaders=2, standbys=standbys, events=log) as service:
        chaos = Chaos(service, folder, steps)
        try:
            while not all(file.exists() and file.read_text() for file in chaos.files):
                assert chaos.go_on()
                time.sleep(0.1)
            for kind, how, pause in events:
                time.sleep(pause)
                if not chaos.go_on():
                    break
                chaos.happen(kind, how, draw)
            deadline = time.monotonic() + PATIENCE + steps * STEP_SECONDS
            while chaos.go_on():
                assert time.monotonic() < deadline, "the trainers do not come to their end"
                time.sleep(0.1)
        finally:
            for trainer in chaos.trainers:
                trainer.end()
        status = service.status()
        assert status["failed"] is None
        happened = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        chaos.promoted = happened.count("promoted")
    for lines, wanted in zip(chaos.lines(), expected):
        assert [{name: line[name] for name in wanted[0]} for line in lines] == wanted
    return chaos


def test_trainers_get_the_same_though_one_process_after_another_is_killed(tmp_path: Path) -> None:
    kinds = ("registry", "loader", "standby", "planner", "constructor", "trainer")
    events = iter([(kind, "killed", 2.0) for kind in kinds])
    chaos = run(tmp_path, prefetch=2, standbys=1, steps=30, events=events)
    assert len(chaos.happened) == len(kinds)
    assert chaos.promoted == 1


@pytest.mark.soak
@pytest.mark.timeout(2 * SOAK_SECONDS + 600)
@pytest.mark.parametrize("standbys", [0, 1])
@pytest.mark.parametrize("prefetch", [2, 4])
def test_chaos(prefetch: int, standbys: int, tmp_path: Path) -> None:
    draw = random.Random(prefetch)
    end = time.monotonic() + SOAK_SECONDS / 4

    def events() -> Iterator[tuple[str, str, float]]:
        while time.monotonic() < end:
            yield (
                draw.choice(KINDS),
                draw.choice(["killed", "killed", "stopped"]),
                draw.uniform(4, 10),
            )

    steps = int(SOAK_SECONDS / 4 / STEP_SECONDS)
    chaos = run(tmp_path, prefetch=prefetch, standbys=standbys, steps=steps, events=events())
    for what, stalls in sorted(chaos.stalls().items()):
        middle, longest = statistics.median(stalls), max(stalls)
        print(
            f"prefetch {prefetch}, standbys {standbys}: {what}: {len(stalls)} times, "
            f"{middle:.1f} s, {longest:.1f} s"
        )
    assert len({what for what, _ in chaos.happened}) > 3
