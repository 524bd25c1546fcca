"""`JobRegistry`: the actor of a running job that trainers' processes find by name.

It knows which actor plays which role, and collects how long clients waited. It raises the alarm
when an actor dies: each client keeps one pending `failed()` call, which resolves only when an actor
dies or the service closes. And as it waits for no role itself, it can always say which keeps the
others waiting.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.metrics import MetricsExporter, WaitStatistics
from evenstep.service.ray.common_state import CommonState
from evenstep.service.ray.handles import Answer, RayHandle, cause_of_death, import_ray
from evenstep.service.ray.role_inquiry import RoleInquiry
from evenstep.service.ray.waits import blame, is_silent, silence_text, waits_of
from evenstep.strategy.mesh import ClientPlaceTree

_EXPORT_INTERVAL = 5.0  # seconds
_REPORT_MARGIN = 30.0  # seconds by which a client may be late to report that it still waits


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """A running job, for clients and other processes that take part in it."""

    name: str
    run_id: int
    """Nanoseconds since 1970 when the job was started; no two runs of a name have the same."""
    fingerprint: str
    tree: ClientPlaceTree
    prefetch: int
    warn_after: float | None
    step: int
    """The first step."""
    registry: RayHandle
    planner: RayHandle
    loaders: tuple[RayHandle, ...]
    constructors: tuple[tuple[tuple[int, ...], RayHandle], ...]
    """The ranks that each constructor serves, and the constructor."""

    @property
    def roles(self) -> list[RayHandle]:
        return [self.planner, *self.loaders, *(handle for _, handle in self.constructors)]

    def constructor(self, rank: int) -> RayHandle:
        """The constructor that serves a rank.

        Raises:
            ConfigurationError: the mesh has no such rank.
        """
        self.tree.place(rank)
        return next(handle for ranks, handle in self.constructors if rank in ranks)


class JobRegistry:
    """An actor whose methods run in one event loop."""

    def __init__(self) -> None:
        self._open_job: JobInfo | None = None
        self._alarm = asyncio.Event()
        self._failure: Answer | None = None
        self._waits = WaitStatistics()
        self._client_waits: dict[str, tuple[dict[str, Any], float]] = {}
        """By who waits, what was reported, and when."""
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, job: JobInfo) -> JobInfo:
        """Makes the job known, and begins to watch its actors; returns the job with the location of
        this process."""
        here = RayHandle(job.registry.actor, "the registry", os.getpid(), socket.gethostname())
        self._open_job = job = replace(job, registry=here)
        self._exporter = MetricsExporter(job.name)
        self._common_state = CommonState(job.planner)
        self._inquiries = [RoleInquiry(handle) for handle in job.roles]
        for handle in job.roles:
            self._tasks.append(asyncio.create_task(self._watch(handle)))
        self._tasks.append(asyncio.create_task(self._export_metrics()))
        return job

    async def job(self) -> JobInfo | None:
        """None before `open`."""
        return self._open_job

    async def begins(self, rank: int) -> Answer:
        """Notes a new client. It waits for the answer, as what it says next may overtake this."""
        self._common_state.begins_anew(rank)
        return Answer([None])

    async def failed(self) -> Answer:
        """Waits until an actor has died, or the service is closed."""
        await self._alarm.wait()
        assert self._failure is not None
        return self._failure

    async def close(self) -> None:
        """Answers all pending `failed()` calls."""
        for task in self._tasks:
            task.cancel()
        of_job = "" if self._open_job is None else f" of job {self._open_job.name!r}"
        self._raise_alarm(EvenstepError(f"the service{of_job} was closed"))

    # Clients

    async def record_step(
        self,
        rank: int,
        step: int,
        seconds: float,
        stages: dict[str, float],
        figures: dict[str, Any],
    ) -> None:
        """See `WaitStatistics.record_step`."""
        self._waits.record_step(rank, step, seconds, stages, **figures)
        self._exporter.observe_wait(seconds)
        self._common_state.took_step(rank, step)
        self._client_waits.pop(f"rank {rank}", None)

    async def record_end(self, rank: int) -> None:
        self._waits.record_end(rank)
        self._client_waits.pop(f"rank {rank}", None)

    async def record_failure(self, rank: int, error: EvenstepError) -> None:
        self._common_state.failed(rank, error)

    async def common_state(self, rank: int, step: int) -> Answer:
        """See `CommonState.meet`."""
        return await self._common_state.meet(rank, step)

    async def explain(self, wait: dict[str, Any]) -> str:
        """Why a client waits: whom the role that it waits for waits for itself, and so on.

        Args:
            wait: see `evenstep.service.ray.waits.Wait`.
        """
        if wait["message"] == "common_state":
            missing = self._common_state.waits()
            if missing:
                return f"which waits for {missing[0]['role']} to call it too"
            wait = {**wait, "role": self._job.planner.role}
        else:
            self._client_waits[wait["by"]] = wait, time.monotonic()
        return blame(await self._processes(), wait["role"], wait["step"])

    # Operation

    async def status(self) -> dict[str, Any]:
        """JSON-able: the state and counters of each role, and how long clients waited."""
        job = self._job
        roles = await asyncio.gather(*(each.status() for each in self._inquiries))
        planner, loaders = roles[0], roles[1 : 1 + len(job.loaders)]
        constructors = roles[1 + len(job.loaders) :]
        return {
            "backend": "ray",
            "name": job.name,
            "run_id": job.run_id,
            "job": job.fingerprint,
            "mesh": dict(job.tree.sizes),
            "failed": None if self._failure is None else str(self._failure.error),
            "ended": self._waits.all_ended,
            "planner": planner,
            "loaders": loaders,
            "constructors": constructors,
            "clients": _with_steps_taken(self._waits.clients(), constructors),
            "steps": self._waits.summary(),
            "silent": [silence_text(h.name, s) for h, s in zip(job.roles, roles) if is_silent(s)],
            "waits": self._all_waits({h.role: said for h, said in zip(job.roles, roles)}),
            "bytes": {
                "loader_to_constructor": _sum(loaders, "fetch_bytes"),
                "constructor_to_client": _sum(constructors, "deliver_bytes"),
            },
        }

    @property
    def _job(self) -> JobInfo:
        assert self._open_job is not None
        return self._open_job

    async def _processes(self) -> dict[str, dict[str, Any]]:
        """By role, what its process works on and waits for."""
        said = await asyncio.gather(*(each.process() for each in self._inquiries))
        return {each.handle.role: about for each, about in zip(self._inquiries, said)}

    def _all_waits(self, roles: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """Waits that are long: of clients, which report them, of roles, and for ranks that are to
        save."""
        least, now, found = self._job.warn_after or math.inf, time.monotonic(), []
        for wait, reported in self._client_waits.values():
            seconds = wait["seconds"] + now - reported
            if seconds < 2 * wait["seconds"] + _REPORT_MARGIN:  # else the client is gone
                silent = is_silent(roles[wait["role"]])
                found.append({**wait, "seconds": seconds, "silent": silent})
        found += [each for each in self._common_state.waits() if each["seconds"] >= least]
        return [*found, *waits_of(roles, least)]

    async def _watch(self, handle: RayHandle) -> None:
        try:
            await handle.actor.wait_forever.remote()
        except import_ray().exceptions.RayActorError as error:
            self._raise_alarm(cause_of_death(handle.name, error))

    async def _export_metrics(self) -> None:
        while True:
            await asyncio.sleep(_EXPORT_INTERVAL)
            self._exporter.export(await self.status())

    def _raise_alarm(self, error: EvenstepError) -> None:
        if self._failure is None:
            self._failure = Answer(error=error)
            self._alarm.set()


def _with_steps_taken(
    clients: Sequence[dict[str, Any]], constructors: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Clients with the steps that constructors know they have taken: what clients report
    themselves may come late, or in another order."""
    taken = {rank: step for each in constructors for rank, step in each.get("taken", {}).items()}
    return [{**each, "step": taken.get(str(each["rank"]), each["step"])} for each in clients]


def _sum(roles: Sequence[dict[str, Any]], name: str) -> int:
    return sum(int(role.get("process", {}).get("done", {}).get(name, 0)) for role in roles)


def namespace_of(job: str) -> str:
    """The Ray namespace of a job's actors.

    Raises:
        ConfigurationError: the name has other characters than are allowed.
    """
    if not job or not all(c.isalnum() or c in "-_." for c in job):
        raise ConfigurationError(
            f"name={job!r} of a job must consist of letters, digits, '-', '_' and '.'"
        )
    return f"evenstep-{job}"
