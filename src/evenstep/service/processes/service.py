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
from evenstep.plan.argument_checks import check_at_least
from evenstep.service.backend_common import (
    Loaders,
    constructor_name,
    constructor_threads,
    groups_of,
    layout_of,
    ranks_of,
)
from evenstep.service.job import Job
from evenstep.service.processes.loader_succession import LoaderSuccession
from evenstep.service.processes.standbys import StandbyProcesses
from evenstep.service.remote.changing_job import ChangingJob
from evenstep.service.remote.discovery import job_in
from evenstep.service.remote.event_log import EventLog
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import Constructors, JobInfo, check_name
from evenstep.service.remote.registry import JobRegistry
from evenstep.service.remote.roads import DirectRoad, ThreadRoad
from evenstep.service.remote.role_host import RoleHost
from evenstep.service.remote.role_limits import RoleLimits
from evenstep.service.remote.role_makers import make_constructor, make_planner
from evenstep.service.remote.standing import Standing
from evenstep.service.sizing.loader_scaling import LoaderScaling
from evenstep.service.source_loader import LoaderJob
from evenstep.service.store.runs import new_run
from evenstep.service.transport.endpoint_file import path_of, remove_endpoint, write_endpoint
from evenstep.strategy.loaders import STRIPE

_CLOSE_SECONDS = 10.0
_HERE = socket.gethostname()


class ProcessService(ChangingJob):
    """A running job. Made by `evenstep.service.start`; a context manager."""

    _is_open = False

    def __init__(
        self,
        job: Job,
        *,
        name: str = "job",
        loaders: Loaders = 1,
        standbys: int = 0,
        scaling: LoaderScaling | None = None,
        constructors: int | None = None,
        state: Mapping[str, Any] | None = None,
        plan_log: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | None = None,
        stripe: int = STRIPE,
        patience: float = 120.0,
        hung_after: float | None = None,
        memory_limit: int | None = None,
        events: str | os.PathLike[str] | None = None,
        step_log: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            name: by which trainers in other processes find the job.
            standbys: processes that could play any loader at once.
            scaling: instead of `loaders`, says how many there are to be, again and again.
            loaders, constructors, state, plan_log, store, stripe: see `LocalService`.
            patience: seconds within which loaders must have opened their sources.
            hung_after: seconds after which a loader that says nothing is killed, and followed by
                another; None waits for it.
            memory_limit: bytes of a loader with its workers, over which it is followed by another.
            events: a file for deaths, restarts, promotions and scaling, a line of JSON each.
            step_log: see `evenstep.service.start`.

        Raises:
            ConfigurationError: a running job of the same name, or what `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: pyzmq is not installed.
        """
        super().__init__(job, constructors=constructors, stripe=stripe)
        check_name(name)
        log = EventLog(events)
        check_at_least(0, standbys=standbys)
        groups = groups_of(job, constructors)
        layout = layout_of(job, loaders if scaling is None else scaling.layout, stripe)
        limits = RoleLimits(
            hung_after=hung_after,
            memory_limit=memory_limit,
            workers=max(layout.workers, default=job.workers),
        )
        self._store = new_run(store)
        self._file = path_of(name)
        if job_in(self._file) is not None:
            raise ConfigurationError(
                f"a job named {name!r} is already running; choose another name=, or end that job"
            )
        parts = job.loader_jobs(layout)
        self._standbys = StandbyProcesses(parts, standbys)
        self._hosts: dict[RemoteHandle, RoleHost] = {}
        self._patience = patience
        self._registry = JobRegistry()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="evenstep-registry", daemon=True
        )
        self._thread.start()
        try:
            for part in parts:
                self._loaders.append(self._new_loader(part))
            self._started = len(parts)
            import_module("evenstep.service.data_constructor")  # torch, while they start
            handles = [each.handle() for each in self._loaders]
            at = None if plan_log is None else os.path.abspath(plan_log)
            given = job, layout, handles, state, at, self._store
            planner = self._made("the Planner", DirectRoad, 1, make_planner, *given)
            registry = RemoteHandle.at(
                "the registry", ThreadRoad(self._registry), os.getpid(), _HERE
            )
            info = JobInfo(
                name=name,
                backend="processes",
                run_id=time.time_ns(),
                fingerprint=job.fingerprint,
                tree=job.tree,
                prefetch=job.prefetch,
                warn_after=job.warn_after,
                step=0 if state is None else int(state["step"]),
                registry=registry,
                planner=planner,
                loaders=tuple(handles),
                constructors=(),
                step_log=None if step_log is None else os.path.abspath(step_log),
            )
            self._info = info
            self._standing = Standing(info=info, layout=layout, tree=job.tree, state=state)
            made = self._new_constructors(job, 0, groups)
            self._info = replace(info, constructors=made)
            self._standing = replace(self._standing, info=self._info)
            self._registry.open_sockets("registry")
            opened = self._registry.open(
                self._standing,
                standbys=self._standbys.status,
                limits=limits,
                kill=self._kill,
                events=log,
            )
            self._run(opened)
            write_endpoint(self._file, self._registry.endpoint)
            self._is_open = True
            atexit.register(self.close)  # for one that nobody closes
            self._standbys.begin()
            if scaling is not None:
                self._begin_scaling(scaling)
        except BaseException:
            self.close()
            raise

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
        return LoaderSuccession(part, self._patience, self._standbys)

    def _new_constructors(self, job: Job, mesh: int, groups: list[list[int]]) -> Constructors:
        info, made = self._info, []
        for number, each in enumerate(groups):
            given = job, self._standing.layout, list(info.loaders), info.planner, each
            threads = constructor_threads(job, len(each))
            role = constructor_name(number, mesh)
            handle = self._made(role, ThreadRoad, threads, make_constructor, *given)
            made.append((ranks_of(job, each), handle))
        return tuple(made)

    def _end_constructors(self, handles: Sequence[RemoteHandle]) -> None:
        for handle in handles:
            self._hosts.pop(handle).close()

    def _tell(self, standing: Standing) -> None:
        self._run(self._registry.stand(standing))

    def _kill(self, about: Mapping[str, Any]) -> None:
        """Kills the process of a loader."""
        for each in self._loaders:
            if each.name == about["role"]:
                each.kill()

    def _made(
        self, role: str, road: type[ThreadRoad], threads: int, make: Any, job: Any, *arguments: Any
    ) -> RemoteHandle:
        """A role in threads of this process."""
        host = RoleHost()
        host.make_role(make, job, *arguments, threads=threads)
        host.open_sockets("role")
        handle = RemoteHandle.at(role, road(host), os.getpid(), _HERE)
        self._hosts[handle] = host
        return handle

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CLOSE_SECONDS)
