"""Trainers on Ray while processes and a node are killed and stopped: each gets, step by step,
what it gets in a run without faults."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from chaos_trainer import line_of
from ray_cluster import HERE, PATIENCE, FarNode, Process
from service_world import job_of, sources

import evenstep.service as es
from evenstep.errors import EvenstepError
from evenstep.service.backends.ray import RayService

STEP_SECONDS = 0.5  # of training


class Chaos:
    """A service, its trainers, and what happens to them."""

    def __init__(
        self,
        service: RayService,
        folder: Path,
        steps: int,
        step_seconds: float,
        far: FarNode | None,
    ) -> None:
        self._service, self._folder, self._far = service, folder, far
        self._steps, self._step_seconds = steps, step_seconds
        ranks = range(len(service.job.tree))
        self.files = [folder / f"{rank}.jsonl" for rank in ranks]
        self.trainers = [self._trainer(rank) for rank in ranks]
        self.happened: list[tuple[str, float, bool]] = []
        """What, when, and whether all went well before."""
        self._calm = True

    def _trainer(self, rank: int) -> Process:
        # Of two nodes on one host, Ray would connect a trainer to any.
        by_file = rank % 2 == 0 or self._far is not None
        more = {"ELSEWHERE": "1"} if rank == 0 else {}
        address = str(self._service.file) if by_file else self._service.address
        given = [address, self._service.name, str(self._steps), str(self._step_seconds)]
        script = str(HERE / "chaos_trainer.py")
        return Process([script, *given, str(self.files[rank])], RANK=str(rank), **more)

    def victims(self, kind: str, draw: random.Random) -> list[int]:
        """Processes that die or stop together."""
        if kind == "node":
            assert self._far is not None
            return self._far.pids
        status = self._status()
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
        """
        Args:
            how: "killed", or "stopped", for 5 or 20 seconds.
        """
        pids = self.victims(kind, draw)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        self._note(kind, how)
        if how == "killed" and kind == "node":
            assert self._far is not None
            self._far.follow()
        if how == "stopped":
            time.sleep(5 if draw.random() < 0.5 else 20)
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _note(self, kind: str, how: str) -> None:
        self.happened.append((f"{kind} {how}", time.time(), self._calm))
        self._calm = False

    def settle(self) -> None:
        """Waits until all roles are played and all trainers have taken another step."""
        end, before = time.monotonic() + PATIENCE, [len(lines) for lines in self.lines()]
        while self.go_on():
            taken = [len(lines) for lines in self.lines()]
            if all(b > a for a, b in zip(before, taken)) and not self._status()["restarting"]:
                break
            assert time.monotonic() < end, f"it does not go on after {self.happened[-1][0]}"
            time.sleep(0.2)
        self._calm = True

    def _status(self) -> dict[str, Any]:
        """Asked again while no process plays the registry."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                return self._service.status()
            except EvenstepError:
                assert time.monotonic() < end, "there is no status"

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
        """By what has happened alone, seconds by which the slowest rank waited longer than usual in
        the time after it, until the next."""
        waits = [(line["at"], line["waited"]) for lines in self.lines() for line in lines]
        usual = statistics.median(waited for _, waited in waits)
        found: dict[str, list[float]] = {}
        after = [(when, calm) for _, when, calm in self.happened[1:]] + [(time.time(), True)]
        for (what, when, calm), (end, calm_again) in zip(self.happened, after):
            if not (calm and calm_again):
                continue
            longest = max((waited for at, waited in waits if when < at < end), default=0.0)
            found.setdefault(what, []).append(max(longest - usual, 0.0))
        return found


def slow_tokens(row: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(0.002)
    return {"input_ids": [row["id"], *range(1, row["length"])]}


def chaos_job(folder: Path, prefetch: int, steps: int, mesh: Mapping[str, int]) -> es.Job:
    return job_of(
        folder,
        sources=sources(folder, counts=(400, 300, 300), transform=slow_tokens),
        mesh=mesh,
        workers=1,
        prefetch=prefetch,
        plans_kept=max(steps, 2 * prefetch + 2),  # no collective holds the ranks together
    )


def undisturbed(job: es.Job, steps: int) -> list[list[Any]]:
    """[ranks] what each gets, as it is written."""
    ranks = range(len(job.tree))
    plain: list[list[Any]] = [[] for _ in ranks]
    with es.start(job, backend="local") as local:
        clients = [local.client(rank) for rank in ranks]
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
    mesh: Mapping[str, int] = {"DP": 2, "CP": 2},
    step_seconds: float = STEP_SECONDS,
    far: FarNode | None = None,
    alone: float = 0.0,
    ray: es.RayOptions | None = None,
) -> Chaos:
    """Plays the events, of which each has a kind, what happens, and the seconds to wait before.

    Args:
        far: the node that the kind "node" is about.
        alone: the share of events that the service has got over when the next comes.
        ray: of the service.
    """
    job = chaos_job(folder, prefetch, steps, mesh)
    expected = undisturbed(job, steps)
    name = f"chaos-{prefetch}-{standbys}"
    faults = es.ServiceFaults(standbys=standbys)
    with RayService(job, name=name, loaders=2, faults=faults, ray=ray) as service:
        return play(service, folder, events, expected, step_seconds, far, alone)


def play(
    service: RayService,
    folder: Path,
    events: Iterator[tuple[str, str, float]],
    expected: list[list[Any]],
    step_seconds: float,
    far: FarNode | None = None,
    alone: float = 0.0,
) -> Chaos:
    """See `run`."""
    steps = len(expected[0])
    draw, waits = random.Random(len(expected)), random.Random(steps)
    chaos = Chaos(service, folder, steps, step_seconds, far)
    try:
        while not all(file.exists() and file.read_text() for file in chaos.files):
            assert chaos.go_on()
            time.sleep(0.1)
        for kind, how, pause in events:
            time.sleep(pause)
            if not chaos.go_on():
                break
            chaos.happen(kind, how, draw)
            if waits.random() < alone:
                chaos.settle()
        deadline = time.monotonic() + PATIENCE + steps * step_seconds
        while chaos.go_on():
            assert time.monotonic() < deadline, "the trainers do not come to their end"
            time.sleep(0.1)
    finally:
        for trainer in chaos.trainers:
            trainer.end()
    assert service.status()["failed"] is None
    for lines, wanted in zip(chaos.lines(), expected):
        assert [{name: line[name] for name in wanted[0]} for line in lines] == wanted
    return chaos
