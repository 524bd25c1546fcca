"""`RayService`: a job whose roles are actors, from its start to its end.

The process that starts it owns the actors: they end with it, however it ends. `start_detached` has
an actor start it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backends.changing_job import ChangingJob
from evenstep.service.backends.ray.discovery import connect, find
from evenstep.service.backends.ray.launcher import ActorLoader, Launcher
from evenstep.service.backends.ray.locators import import_ray
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import LoaderJob
from evenstep.service.planner.seen import begin_run
from evenstep.service.planner.store.run_store import new_run, own_run
from evenstep.service.remote.channels import SocketChannel
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import Constructors, JobState
from evenstep.service.start_options import RayOptions, StartOptions
from evenstep.service.transport.endpoint import path_of, remove_endpoint, write_endpoint


class RayService(ChangingJob):
    """A running job. Made by `evenstep.service.start`; a context manager."""

    def __init__(self, job: Job, *, ray: RayOptions | None = None, **given: Any) -> None:
        """
        Args:
            given: `StartOptions`.

        Raises:
            ConfigurationError: no cluster, too few CPUs, a running job of the same name, or what
                `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: Ray is not installed.
        """
        super().__init__(job, options := StartOptions(**given))
        ray, name, store = ray or RayOptions(), options.name, options.store
        self._launcher = launcher = Launcher(self.job, self._layout, self._groups, options, ray)
        self._own = own_run() if store is None else None
        self._file: Path | None = None
        self._connected = connect(ray.address, ray.init)
        try:
            refuse_running(name)
            run = self._own or new_run(store)
            seen = begin_run(self._logs.seen, self.job.names, options.state)
            planner, self._loaders, made = launcher.create(run, seen)
            self._begin_state("ray", launcher.run_id, launcher.registry, planner, made)
            launcher.start(self._state)
            self._started = len(self._loaders)
            channel = self._info.registry.channel
            assert isinstance(channel, SocketChannel)
            # Of this run: a job of the same name may run on another cluster, or without Ray.
            self._file = path_of(f"{name}-{self._info.run_id}")
            self._endpoint = channel.endpoint
            write_endpoint(self._file, self._endpoint)
            self._begin_scaling(options.loaders)
            self._begin_orders()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The cluster's address, for `evenstep.service.Client`."""
        return str(import_ray().get_runtime_context().gcs_address)

    @property
    def file(self) -> Path:
        """Where the address for trainers on hosts without Ray is: copy it there, readable by its
        owner alone."""
        assert self._file is not None
        return self._file

    def close(self) -> None:
        """Ends all actors, and Ray if this service started it. Idempotent."""
        if self._closed:
            return
        self._end_scaling()
        super().close()
        self._close_clients()
        if self._file is not None:
            remove_endpoint(self._file, self._endpoint)
        if import_ray().is_initialized():
            self._launcher.end()
            self._launcher.registry.place.disconnect()
            if self._connected:
                import_ray().shutdown()
        if self._own is not None:
            shutil.rmtree(self._own.url, ignore_errors=True)

    def _new_loader(self, part: LoaderJob) -> ActorLoader:
        return self._launcher.begin_loader(part)

    def _new_constructors(self, job: Job, mesh: int, groups: list[list[int]]) -> Constructors:
        return self._launcher.begin_constructors(job, mesh, groups)

    def _end_constructors(self, handles: Sequence[RemoteHandle]) -> None:
        self._launcher.end_roles(handles)

    def _tell(self, job_state: JobState) -> None:
        self._launcher.tell(job_state)


def refuse_running(name: str) -> None:
    """
    Raises:
        ConfigurationError: a job of this name runs on the cluster.
    """
    try:
        info = find(name)
    except ConfigurationError:
        return
    started = time.strftime("%H:%M:%S", time.localtime(info.run_id / 1e9))
    raise ConfigurationError(
        f"a job named {name!r} is already running (started {started}); choose another name=, or "
        "end that job"
    )
