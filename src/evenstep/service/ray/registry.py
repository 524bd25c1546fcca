"""`JobRegistry`: the actor of a running job that trainers' processes find by name.

It knows which actor plays which role, collects how long clients waited, and raises the alarm when
an actor dies: each client keeps one pending `failed()` call, which resolves only when an actor dies
or the service closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.metrics import MetricsExporter, WaitStatistics
from evenstep.service.ray.handles import (
    Answer,
    RayHandle,
    cause_of_death,
    decode_answer,
    encode_messages,
    import_ray,
)
from evenstep.strategy.mesh import ClientPlaceTree

_EXPORT_INTERVAL = 5.0  # seconds


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """A running job, for clients and other processes that take part in it."""

    name: str
    run_id: int
    """Nanoseconds since 1970 when the job was started; no two runs of a name have the same."""
    fingerprint: str
    tree: ClientPlaceTree
    prefetch: int
    step: int
    """The first step."""
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
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, job: JobInfo) -> None:
        """Makes the job known, and begins to watch its actors."""
        self._open_job, self._exporter = job, MetricsExporter(job.name)
        for handle in job.roles:
            self._tasks.append(asyncio.create_task(self._watch(handle)))
        self._tasks.append(asyncio.create_task(self._export_metrics()))

    async def job(self) -> JobInfo | None:
        """None before `open`."""
        return self._open_job

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

    async def record_end(self, rank: int) -> None:
        self._waits.record_end(rank)

    # Operation

    async def status(self) -> dict[str, Any]:
        """JSON-able: the state and counters of each role, and how long clients waited."""
        job = self._open_job
        assert job is not None
        roles = await asyncio.gather(*(self._status_of(handle) for handle in job.roles))
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
            "bytes": {
                "loader_to_constructor": _sum(loaders, "fetch_bytes"),
                "constructor_to_client": _sum(constructors, "deliver_bytes"),
            },
        }

    async def _status_of(self, handle: RayHandle) -> dict[str, Any]:
        try:
            sent = await handle.actor.handle.remote(encode_messages([("status", ())]))
            process = await handle.actor.measure.remote()
        except import_ray().exceptions.RayActorError:
            return {"died": handle.name}
        answer = decode_answer(sent)
        if answer.error is not None:
            return {"failed": str(answer.error), "process": process}
        return {**answer.value[0], "process": process}

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
