"""`JobRegistryActor`: the registry of a job as a Ray actor, which clients find by its name.

Roles that Ray restarts ask the registry for the job's state. A restarted registry gets the state
from the process that started the service (`RegistryKeeper`), which lives as long as all actors do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from zlib import crc32

from evenstep.service.backends.ray.locators import LoaderActors, RayLocator, import_ray
from evenstep.service.messages import Message
from evenstep.service.registry.metrics import MetricsExporter
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.registry.role_status import EventLog
from evenstep.service.remote.channels import Answer, Location, RolePlace, SocketChannel
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import JobState
from evenstep.service.transport.endpoint import Keys


def kill_process(about: Mapping[str, Any]) -> None:
    """Returns when it is killed, or its node is gone.

    Args:
        about: its `process` and `host`.
    """
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and node["NodeManagerHostname"] == about["host"]
    ]
    if nodes:
        there = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
        task = ray.remote(num_cpus=0, max_retries=0)(_kill).options(scheduling_strategy=there)
        with suppress(ray.exceptions.RayError):
            ray.get(task.remote(about["process"]))


def _kill(process: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


_INTERVAL = 0.2  # seconds
_PORTS = range(20_000, 32_000)  # below those that systems give to outgoing connections


class RegistryKeeper:
    """Tells the registry the job's state, from its construction on, and each process that replaces
    it."""

    def __init__(self, registry: Any, job_state: JobState) -> None:
        """
        Args:
            registry: Ray's handle.
        """
        self._registry, self._state = registry, job_state
        self._closed = threading.Event()
        # `keep` is one message: the second of two could reach another process than the first.
        threading.Thread(
            target=self._send, args=("keep",), name="evenstep-registry", daemon=True
        ).start()

    def tell(self, job_state: JobState) -> None:
        """Returns when the registry has the state."""
        self._state = job_state
        self._send("update")

    def close(self) -> None:
        """Before the registry ends. Idempotent."""
        self._closed.set()

    def _send(self, method: str) -> None:
        ray = import_ray()
        while not self._closed.is_set():
            try:
                ray.get(getattr(self._registry, method).remote(self._state))
                return
            except ray.exceptions.RayTaskError:
                raise
            except ray.exceptions.RayError:  # it is restarting
                self._closed.wait(_INTERVAL)


class JobRegistryActor(JobRegistry):
    """See the module docstring. It starts when `RegistryKeeper` tells it the job's state."""

    def __init__(
        self,
        locator: RayLocator,
        keys: Keys,
        loaders: LoaderActors | None = None,
        events: str | None = None,
        hung_after: float | None = None,
    ) -> None:
        """
        Args:
            locator: of this actor.
            keys: of its sockets.
            loaders: of a job with standbys.
            events: a file; see `EventLog`.
            hung_after: see `JobRegistry.open`.
        """
        super().__init__()
        self._locator, self._keys, self._loaders = locator, keys, loaders
        self._log, self._hung_after = EventLog(events), hung_after
        self._location: Location | None = None
        self._located = asyncio.Event()

    async def update(self, job_state: JobState) -> None:
        """See `JobRegistry.update`."""
        if self._location is not None:
            await super().update(job_state)
            return
        import ray

        self._loop = asyncio.get_running_loop()
        host, keys = ray.util.get_node_ip_address(), self._keys
        # One that restarts on the same host listens on the same port.
        port = _PORTS.start + crc32(keys.server_public) % len(_PORTS)
        channel = SocketChannel(self.open_sockets("registry", host=host, keys=keys, port=port))
        self._location = Location(channel, os.getpid(), socket.gethostname(), time.time_ns())
        info = job_state.info
        place = RolePlace(info.registry.role, self._location, self._locator)
        await self.open(
            replace(job_state, info=replace(info, registry=RemoteHandle(place))),
            MetricsExporter(info.name),
            self._all_standbys,
            self._hung_after,
            kill_process,
            self._log,
            _room,
        )
        self._located.set()

    def _all_standbys(self) -> list[dict[str, Any]]:
        return [] if self._loaders is None else self._loaders.standbys(len(self._job.loaders))

    async def job_state(self) -> JobState:
        """See `JobRegistry.job_state`; as soon as it knows it."""
        await self.location()
        return await super().job_state()

    async def location(self) -> Location:
        """See `RoleActor.location`."""
        await self._located.wait()
        assert self._location is not None
        return self._location

    async def keep(self, job_state: JobState) -> None:
        """See `JobRegistry.update`. Never answered: a caller that waits for it learns when the
        process that has the state is gone."""
        await self.update(job_state)
        await asyncio.Event().wait()

    async def answer(self, messages: Sequence[Message]) -> Answer:
        """See `JobRegistry.answer`; once it is open. Its sockets are open before, and clients that
        look for a registry that has restarted use them at once."""
        await self.location()
        return await super().answer(messages)


def _room() -> str:
    import ray

    free = ray.available_resources().get("CPU", 0.0)
    return f"Ray makes it where there is room, and the cluster has {free:g} CPUs free"
