"""`JobRegistryActor`: the registry of a job as a Ray actor, which clients find by its name."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

from evenstep.service.metrics import MetricsExporter
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.registry import JobRegistry
from evenstep.service.remote.roads import Answer, SocketRoad
from evenstep.service.transport.endpoint import Keys


class JobRegistryActor(JobRegistry):
    """See the module docstring."""

    async def begin(
        self, job: JobInfo, roles: Sequence[RemoteHandle], keys: Keys | None
    ) -> JobInfo:
        """See `JobRegistry.open`.

        Args:
            keys: of sockets; None for a registry without sockets.
        """
        if keys is not None:
            import ray

            host = ray.util.get_node_ip_address()
            road = SocketRoad(self.open_sockets("registry", host=host, keys=keys))
            job = replace(job, registry=RemoteHandle(job.registry.role, road))
        return await self.open(job, roles, MetricsExporter(job.name))

    async def handle(self, sent: bytes) -> Answer:
        """Handles messages; see `evenstep.service.ray.road`. Ray serializes the answer itself, as
        it may have handles of actors."""
        return await self.answer(pickle.loads(sent))
