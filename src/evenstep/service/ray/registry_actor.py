"""`JobRegistryActor`: the registry of a job as a Ray actor, which clients find by its name."""

from __future__ import annotations

import os
import pickle
import socket
import time
from dataclasses import replace

from evenstep.service.metrics import MetricsExporter
from evenstep.service.ray.finder import LoaderFinder, RayFinder, location_in
from evenstep.service.remote.event_log import EventLog
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.registry import JobRegistry
from evenstep.service.remote.roads import Answer
from evenstep.service.remote.role_place import RolePlace
from evenstep.service.transport.endpoint import Keys


class JobRegistryActor(JobRegistry):
    """See the module docstring."""

    def __init__(
        self,
        job: JobInfo,
        finder: RayFinder,
        keys: Keys | None,
        loaders: LoaderFinder | None = None,
        events: str | None = None,
    ) -> None:
        """
        Args:
            finder: of this actor.
            keys: of sockets; None for a registry without sockets.
            loaders: of a job with standbys.
            events: a file; see `EventLog`.
        """
        super().__init__()
        self._given, self._finder, self._keys = job, finder, keys
        self._log = EventLog(events)
        self._standbys_of = list if loaders is None else loaders.standbys
        self._location: Answer | None = None

    async def location(self) -> Answer:
        """See `RoleActor.location`. The registry begins when it is first asked."""
        if self._location is None:
            import ray

            endpoint = None
            if self._keys is not None:
                host = ray.util.get_node_ip_address()
                endpoint = self.open_sockets("registry", host=host, keys=self._keys)
            here = os.getpid(), socket.gethostname(), time.time_ns()
            self._location = Answer((*here, endpoint, False))
            actor = ray.get_actor(self._finder.name, namespace=self._finder.namespace)
            known = location_in(self._location, actor)
            place = RolePlace(self._given.registry.role, known, self._finder)
            job = replace(self._given, registry=RemoteHandle(place))
            await self.open(job, MetricsExporter(job.name), self._standbys_of, events=self._log)
        return self._location

    async def handle(self, sent: bytes, born: int | None = None) -> Answer:
        """Handles messages; see `evenstep.service.ray.road`. Ray serializes the answer itself, as
        it may have handles of actors. Any process of a registry may answer."""
        await self.location()
        return await self.answer(pickle.loads(sent))
