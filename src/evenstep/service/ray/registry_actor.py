"""`JobRegistryActor`: the registry of a job as a Ray actor, which clients find by its name."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import time
from dataclasses import replace
from typing import Any

from evenstep.service.metrics import MetricsExporter
from evenstep.service.ray.finder import RayFinder, location_in
from evenstep.service.ray.loader_finder import LoaderActors
from evenstep.service.ray.process_kill import kill_process
from evenstep.service.remote.event_log import EventLog
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.registry import JobRegistry
from evenstep.service.remote.roads import Answer
from evenstep.service.remote.role_limits import RoleLimits
from evenstep.service.remote.role_place import RolePlace
from evenstep.service.remote.standing import Standing
from evenstep.service.transport.endpoint import Keys


class JobRegistryActor(JobRegistry):
    """See the module docstring. It begins when it is told how the job stands, see
    `RegistryKeeper`."""

    def __init__(
        self,
        finder: RayFinder,
        keys: Keys | None,
        loaders: LoaderActors | None = None,
        events: str | None = None,
        limits: RoleLimits | None = None,
    ) -> None:
        """
        Args:
            finder: of this actor.
            keys: of sockets; None for a registry without sockets.
            loaders: of a job with standbys.
            events: a file; see `EventLog`.
            limits: see `JobRegistry.open`.
        """
        super().__init__()
        self._finder, self._keys, self._loaders = finder, keys, loaders
        self._log, self._limits = EventLog(events), limits
        self._location: Answer | None = None
        self._located = asyncio.Event()

    async def stand(self, standing: Standing) -> None:
        """See `JobRegistry.stand`."""
        if self._location is not None:
            await super().stand(standing)
            return
        import ray

        endpoint = None
        if self._keys is not None:
            host = ray.util.get_node_ip_address()
            endpoint = self.open_sockets("registry", host=host, keys=self._keys)
        here = os.getpid(), socket.gethostname(), time.time_ns()
        self._location = Answer((*here, endpoint, False))
        actor = ray.get_actor(self._finder.name, namespace=self._finder.namespace)
        known = location_in(self._location, actor)
        info = standing.info
        place = RolePlace(info.registry.role, known, self._finder)
        await self.open(
            replace(standing, info=replace(info, registry=RemoteHandle(place))),
            MetricsExporter(info.name),
            self._all_standbys,
            self._limits,
            kill_process,
            self._log,
            _room,
        )
        self._located.set()

    def _all_standbys(self) -> list[dict[str, Any]]:
        return [] if self._loaders is None else self._loaders.standbys(len(self._job.loaders))

    async def standing(self) -> Standing:
        """See `JobRegistry.standing`; as soon as it has been told."""
        await self.location()
        return await super().standing()

    async def location(self) -> Answer:
        """See `RoleActor.location`."""
        await self._located.wait()
        assert self._location is not None
        return self._location

    async def keep(self, standing: Standing) -> None:
        """See `JobRegistry.stand`. Never answered: a caller that waits for it learns when the
        process that was told is gone."""
        await self.stand(standing)
        await asyncio.Event().wait()

    async def handle(self, sent: bytes, born: int | None = None) -> Answer:
        """Handles messages; see `evenstep.service.ray.road`. Ray serializes the answer itself, as
        it may have handles of actors. Any process of a registry may answer."""
        await self.location()
        return await self.answer(pickle.loads(sent))


def _room() -> str:
    import ray

    free = ray.available_resources().get("CPU", 0.0)
    return f"Ray makes it where there is room, and the cluster has {free:g} CPUs free"
