"""`ProcessService`: a job on this machine without Ray, from its start to its end.

Loaders, which run users' transforms, are processes. The planner, the constructors and the registry
are threads of the process that starts the job: it has torch loaded, and what its own clients get
is sent nowhere. Trainers in other processes connect to it by sockets.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import socket
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backends.changing_job import ChangingJob
from evenstep.service.backends.processes.loader_processes import LoaderSuccession, StandbyProcesses
from evenstep.service.client.discovery import job_in
from evenstep.service.job.job import Job
from evenstep.service.job.roles import constructor_name, constructor_threads, ranks_of
from evenstep.service.job.source_layout import LoaderJob
from evenstep.service.planner.seen import begin_run
from evenstep.service.planner.store.run_store import new_run
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.registry.role_status import EventLog
from evenstep.service.remote.channels import ThreadChannel
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import Constructors, JobState
from evenstep.service.remote.role_host import RoleHost
from evenstep.service.remote.role_makers import make_constructor, make_planner
from evenstep.service.start_options import StartOptions
from evenstep.service.transport.endpoint import NameLock, path_of, remove_endpoint, write_endpoint

_CLOSE_SECONDS = 10.0
_HERE = socket.gethostname()


class ProcessService(ChangingJob):
    """A running job. Made by `evenstep.service.start`; a context manager."""

    _is_open = False

    def __init__(self, job: Job, **given: Any) -> None:
        """
        Args:
            given: `StartOptions`.

        Raises:
            ConfigurationError: a running job of the same name, or what `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: pyzmq is not installed.
        """
        super().__init__(job, options := StartOptions(**given))
        name, job = options.name, self.job
        events = EventLog(self._logs.events)
        self._store = new_run(options.store)
        seen = begin_run(self._logs.seen, self.job.names, options.state)
        self._file = path_of(name)
        if job_in(self._file) is not None:
            raise _runs(name)
        parts = job.loader_jobs(self._layout)
        self._standbys = StandbyProcesses(parts, self._faults.standbys)
        self._hosts: dict[RemoteHandle, RoleHost] = {}
        self._registry = JobRegistry()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="evenstep-registry", daemon=True
        )
        self._thread.start()
        self._name_lock = NameLock(self._file)
        try:
            if not self._name_lock.held:
                raise _runs(name)
            for part in parts:
                self._loaders.append(self._new_loader(part))
            self._started = len(parts)
            # Imports torch while the loaders start.
            import_module("evenstep.service.constructor.batch_builder")
            handles = [each.handle() for each in self._loaders]
            run = job, self._layout, handles, options.state, seen, self._store
            planner = self._made("the Planner", 1, make_planner, *run)
            here = ThreadChannel(self._registry)
            registry = RemoteHandle.at("the registry", here, os.getpid(), _HERE)
            self._begin_state("processes", time.time_ns(), registry, planner, ())
            made = self._new_constructors(job, 0, self._groups)
            self._info = replace(self._info, constructors=made)
            self._state = replace(self._state, info=self._info)
            self._open_registry(events)
            write_endpoint(self._file, self._registry.endpoint)
            self._is_open = True
            atexit.register(self.close)  # in case nobody closes it
            self._standbys.begin()
            self._begin_scaling(options.loaders)
            self._begin_orders()
        except BaseException:
            self.close()
            raise

    def _open_registry(self, events: EventLog) -> None:
        self._registry.open_sockets("registry")
        opened = self._registry.open(
            self._state,
            standbys=self._standbys.status,
            hung_after=self._faults.hung_after,
            kill=self._kill,
            events=events,
        )
        self._run(opened)

    @property
    def address(self) -> str:
        """For `evenstep.service.Client` in other processes of this user."""
        return str(self._file)

    def close(self) -> None:
        """Ends all roles. Idempotent."""
        if self._closed:
            return
        self._end_scaling()
        super().close()
        atexit.unregister(self.close)
        self._close_clients()
        if self._is_open:
            remove_endpoint(self._file, self._registry.endpoint)
        self._name_lock.close()
        self._run(self._registry.close())  # first: it would take loaders that end for dead
        for loader in self._loaders:
            loader.ask_to_end()
        self._standbys.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for host in self._hosts.values():
            host.close()
        for loader in self._loaders:
            loader.end()

    def _new_loader(self, part: LoaderJob) -> LoaderSuccession:
        return LoaderSuccession(part, self._faults.patience, self._standbys)

    def _new_constructors(self, job: Job, mesh: int, groups: list[list[int]]) -> Constructors:
        info, made = self._info, []
        for number, each in enumerate(groups):
            given = job, self._state.layout, list(info.loaders), info.planner, each
            threads = constructor_threads(job, len(each))
            role = constructor_name(number, mesh)
            handle = self._made(role, threads, make_constructor, *given)
            made.append((ranks_of(job, each), handle))
        return tuple(made)

    def _end_constructors(self, handles: Sequence[RemoteHandle]) -> None:
        for handle in handles:
            self._hosts.pop(handle).close()

    def _tell(self, job_state: JobState) -> None:
        self._run(self._registry.update(job_state))

    def _kill(self, about: Mapping[str, Any]) -> None:
        """Kills the process of a loader."""
        for each in self._loaders:
            if each.name == about["role"]:
                each.kill()

    def _made(self, role: str, threads: int, make: Any, job: Any, *arguments: Any) -> RemoteHandle:
        """A role in threads of this process."""
        host = RoleHost()
        host.make_role(make, job, *arguments, threads=threads)
        host.open_sockets("role")
        handle = RemoteHandle.at(role, ThreadChannel(host), os.getpid(), _HERE)
        self._hosts[handle] = host
        return handle

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CLOSE_SECONDS)


def _runs(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"a job named {name!r} is already running; choose another name=, or end that job"
    )
