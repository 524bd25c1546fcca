"""The desk of a running job: the actor that trainers' processes find by name.

It says who plays which role, hears what clients waited, and raises the alarm where an actor dies:
everyone who takes steps holds one question that is answered by nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.metrics import Published, Waits
from evenstep.service.ray.handles import Answer, RayHandle, died, opened, packed
from evenstep.service.ray.import_ray import import_ray
from evenstep.strategy.mesh import ClientPlaceTree

__all__ = ["JobInfo", "JobRegistry"]

_EVERY = 5.0  # seconds between what is published


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """A running job, for those who take part in it. A client sees it as its job."""

    name: str
    epoch: int
    """When it was started; no two of a name have the same."""
    fingerprint: str
    tree: ClientPlaceTree
    prefetch: int
    step: int
    """The first."""
    planner: RayHandle
    loaders: tuple[RayHandle, ...]
    constructors: tuple[tuple[tuple[int, ...], RayHandle], ...]
    """Ranks and the constructor that serves them."""

    @property
    def roles(self) -> list[RayHandle]:
        return [self.planner, *self.loaders, *(handle for _, handle in self.constructors)]

    def constructor(self, rank: int) -> RayHandle:
        """Of a rank.

        Raises:
            ConfigurationError: the mesh has no such rank.
        """
        self.tree.place(rank)
        return next(handle for ranks, handle in self.constructors if rank in ranks)


class JobRegistry:
    """Use it as an actor: its methods run in one event loop."""

    def __init__(self) -> None:
        self._opened: JobInfo | None = None
        self._alarm = asyncio.Event()
        self._told: Answer | None = None
        self._waits = Waits()
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, about: JobInfo) -> None:
        """Begins to watch the actors."""
        self._opened, self._published = about, Published(about.name)
        for handle in about.roles:
            self._tasks.append(asyncio.create_task(self._watch(handle)))
        self._tasks.append(asyncio.create_task(self._publishing()))

    async def about(self) -> JobInfo | None:
        """None before the roles are there."""
        return self._opened

    @property
    def _about(self) -> JobInfo:
        assert self._opened is not None
        return self._opened

    async def failed(self) -> Answer:
        """Answered where an actor has died, or where the service is closed."""
        await self._alarm.wait()
        assert self._told is not None
        return self._told

    async def close(self) -> None:
        """Tells everyone who still waits."""
        for task in self._tasks:
            task.cancel()
        of = "" if self._opened is None else f" of job {self._opened.name!r}"
        self._ring(EvenstepError(f"the service{of} was closed"))

    # Clients

    async def took(self, rank: int, step: int, seconds: float, *rest: Any) -> None:
        """See `Waits.took`."""
        stages, told = rest
        self._waits.took(rank, step, seconds, stages, **told)
        self._published.waited(seconds)

    async def ended(self, rank: int) -> None:
        self._waits.ended(rank)

    # Operation

    async def status(self) -> dict[str, Any]:
        """JSON-able: what each role is at and has done, and what clients waited."""
        about = self._about
        told = await asyncio.gather(*(self._asked(handle) for handle in about.roles))
        planner, loaders = told[0], told[1 : 1 + len(about.loaders)]
        constructors = told[1 + len(about.loaders) :]
        return {
            "backend": "ray",
            "name": about.name,
            "epoch": about.epoch,
            "job": about.fingerprint,
            "mesh": dict(about.tree.sizes),
            "failed": None if self._told is None else str(self._told.error),
            "ended": self._waits.all_ended,
            "planner": planner,
            "loaders": loaders,
            "constructors": constructors,
            "clients": _reached(self._waits.clients(), constructors),
            "steps": self._waits.summary(),
            "bytes": {
                "loader_to_constructor": _sum(loaders, "fetch_bytes"),
                "constructor_to_client": _sum(constructors, "deliver_bytes"),
            },
        }

    async def _asked(self, handle: RayHandle) -> dict[str, Any]:
        try:
            answer = opened(await handle.actor.handle.remote(packed([("status", ())])))
            process = await handle.actor.measure.remote()
        except import_ray().exceptions.RayActorError:
            return {"died": handle.name}
        if answer.error is not None:
            return {"failed": str(answer.error), "process": process}
        return {**answer.value[0], "process": process}

    async def _watch(self, handle: RayHandle) -> None:
        try:
            await handle.actor.stand_by.remote()
        except import_ray().exceptions.RayActorError as error:
            self._ring(died(handle.name, error))

    async def _publishing(self) -> None:
        while True:
            await asyncio.sleep(_EVERY)
            self._published.publish(await self.status())

    def _ring(self, error: EvenstepError) -> None:
        if self._told is None:
            self._told = Answer(error=error)
            self._alarm.set()


def _reached(
    clients: Sequence[dict[str, Any]], constructors: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """What clients have told of themselves may come late, or in another order; constructors know
    which step each of them has come to."""
    taken = {rank: step for each in constructors for rank, step in each.get("taken", {}).items()}
    return [{**each, "step": taken.get(str(each["rank"]), each["step"])} for each in clients]


def _sum(roles: Sequence[dict[str, Any]], name: str) -> int:
    return sum(int(role.get("process", {}).get("done", {}).get(name, 0)) for role in roles)


def named(job: str) -> str:
    """The namespace of a job's actors.

    Raises:
        ConfigurationError: a name that is none.
    """
    if not job or not all(c.isalnum() or c in "-_." for c in job):
        raise ConfigurationError(
            f"name={job!r} of a job must be of letters, digits, '-', '_' and '.'"
        )
    return f"evenstep-{job}"
