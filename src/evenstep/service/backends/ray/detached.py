"""`start_detached`: a job that outlives the process that starts it.

An actor of the cluster, the `OwnerActor`, starts the job in its place and owns it. It ends the job
where its mixture ends, where it fails, on order (`AttachedService.end`), or when no client has
taken a step for a given time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.backends.ray.discovery import connect, joined_cluster, namespace_of
from evenstep.service.backends.ray.locators import import_ray
from evenstep.service.backends.ray.ray_service import RayService, refuse_running
from evenstep.service.client.joining import AttachedService
from evenstep.service.job.job import Job
from evenstep.service.remote.role_host import sendable, unpickled_job
from evenstep.service.start_options import RayOptions, StartOptions

_INTERVAL = 1.0  # seconds between looks at the job


class OwnerActor:
    """See the module docstring."""

    def __init__(self, job: bytes, paths: Sequence[str], idle: float) -> None:
        """
        Args:
            job: by cloudpickle, it and the arguments of `RayService`.
            paths: see `unpickled_job`.
            idle: seconds without a step after which the job ends.
        """
        self._given, self._paths, self._idle = job, paths, idle
        self._myself = import_ray().get_runtime_context().current_actor

    def begin(self) -> EvenstepError | None:
        """Starts the job; returns the error with which it could not be started."""
        try:
            job, options = unpickled_job(self._given, self._paths)
            self._service = RayService(job, **options)
        except Exception as error:
            return sendable(error)
        threading.Thread(target=self._watch, name="evenstep-owner", daemon=True).start()
        return None

    def _watch(self) -> None:
        steps, since = -1, time.monotonic()
        while True:
            ordered = self._service.asked_to_end.wait(_INTERVAL)
            try:
                status = self._service.status()
            except EvenstepError:  # the registry restarts
                continue
            taken = sum(int(client["step"]) for client in status["clients"])
            if taken != steps:
                steps, since = taken, time.monotonic()
            idle = time.monotonic() - since > self._idle
            if ordered or idle or status["ended"] or status["failed"]:
                break
        if idle:
            with suppress(EvenstepError):
                self._service.note("idle", seconds=self._idle)
        self._service.close()
        import_ray().kill(self._myself)


def start_detached(job: Job, *, ray: RayOptions, **given: Any) -> AttachedService:
    """Starts a job that goes on without this process, and attaches to it.

    Args:
        given: `StartOptions`.

    Raises:
        ConfigurationError: the cluster would end with this process, or what `RayService` raises.
    """
    name, idle = StartOptions(**given).name, ray.detached
    assert idle is not None
    module = import_ray()
    own = ray.address in (None, "local") and not os.environ.get("RAY_ADDRESS")
    if own and not module.is_initialized():
        raise ConfigurationError(
            f"detached={idle:g}, but address={ray.address!r} starts a Ray that ends with this "
            'process; start one with `ray start --head`, and give its address, or "auto"'
        )
    connected = connect(ray.address, ray.init)
    try:
        refuse_running(name)
        options: Mapping[str, Any] = {**given, "ray": replace(ray, address=None, init=None)}
        paths = [os.path.abspath(path) for path in sys.path]
        actor = module.remote(num_cpus=0, max_concurrency=4)(OwnerActor)
        owner = actor.options(
            name=f"{time.time_ns()}-owner", namespace=namespace_of(name), lifetime="detached"
        ).remote(module.cloudpickle.dumps((job, options)), paths, idle)
        failed = module.get(owner.begin.remote())
        if failed is not None:
            module.kill(owner)
            raise failed
    except BaseException:
        if connected:
            module.shutdown()
        raise
    return AttachedService(*joined_cluster(connected, name, time.monotonic()))
