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
from functools import partial
from importlib import import_module
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_seconds
from evenstep.service.backend_common import Loaders, constructor_threads, groups_of, layout_of
from evenstep.service.handles import Message, call, results
from evenstep.service.job import Job
from evenstep.service.processes.loader_succession import LoaderSuccession
from evenstep.service.processes.scaling_thread import ScalingThread
from evenstep.service.processes.standbys import StandbyProcesses
from evenstep.service.remote.client import RemoteClient
from evenstep.service.remote.discovery import job_in
from evenstep.service.remote.event_log import EventLog
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo, check_name
from evenstep.service.remote.registry import JobRegistry
from evenstep.service.remote.roads import DirectRoad, ThreadRoad
from evenstep.service.remote.role_host import RoleHost
from evenstep.service.remote.role_makers import make_constructor, make_planner
from evenstep.service.remote.running_job import OwnedJob
from evenstep.service.sizing.loader_scaling import LoaderScaling
from evenstep.service.source_layout import SourceLayout
from evenstep.service.store.runs import new_run
from evenstep.service.transport.endpoint_file import path_of, remove_endpoint, write_endpoint
from evenstep.strategy.loaders import STRIPE

_CLOSE_SECONDS = 10.0
_HERE = socket.gethostname()


class ProcessService(OwnedJob):
    """A running job. Made by `evenstep.service.start`; a context manager."""

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
            events: a file for deaths, restarts, promotions and scaling, a line of JSON each.
            step_log: see `evenstep.service.start`.

        Raises:
            ConfigurationError: a running job of the same name, or what `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: pyzmq is not installed.
        """
        super().__init__(job)
        check_name(name)
        self._events = EventLog(events)
        check_at_least(0, standbys=standbys)
        check_seconds("waits for what hangs", hung_after=hung_after)
        self._constructors, self._groups = constructors, groups_of(job, constructors)
        self._former_clients: list[RemoteClient] = []
        """Of meshes before."""
        given = loaders if scaling is None else scaling.layout
        self._layout = layout_of(job, given, stripe)
        self._store = new_run(store)
        self._file = path_of(name)
        if job_in(self._file) is not None:
            raise ConfigurationError(
                f"a job named {name!r} is already running; choose another name=, or end that job"
            )
        parts = job.loader_jobs(self._layout)
        self._standbys = StandbyProcesses(parts, standbys)
        self._processes: list[LoaderSuccession] = []
        self._hosts: list[RoleHost] = []
        self._roles: list[RemoteHandle] = []
        """The planner and all constructors, and their hosts."""
        self._started = len(parts)
        """Loaders, since the start."""
        self._patience, self._stripe = patience, stripe
        self._changing = threading.Lock()
        self._scaling: ScalingThread | None = None
        self._registry = JobRegistry()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="evenstep-registry", daemon=True
        )
        self._thread.start()
        try:
            for part in parts:
                self._processes.append(LoaderSuccession(part, patience, self._standbys))
            import_module("evenstep.service.data_constructor")  # torch, while they start
            made = self._made_roles(state, plan_log)
            info = JobInfo(
                name=name,
                backend="processes",
                run_id=time.time_ns(),
                fingerprint=job.fingerprint,
                tree=job.tree,
                prefetch=job.prefetch,
                warn_after=job.warn_after,
                step=0 if state is None else int(state["step"]),
                registry=RemoteHandle.at(
                    "the registry", ThreadRoad(self._registry), os.getpid(), _HERE
                ),
                step_log=None if step_log is None else os.path.abspath(step_log),
                **made,
            )
            self._registry.open_sockets("registry")
            opened = self._registry.open(
                info,
                standbys=self._standbys.status,
                hung_after=hung_after,
                kill=self._kill,
                events=self._events,
            )
            self._run(opened)
            self._info = info
            write_endpoint(self._file, self._registry.endpoint)
            atexit.register(self.close)  # for one that nobody closes
            self._standbys.begin()
            if scaling is not None:
                planner_status = partial(call, info.planner, "status")
                self._scaling = ScalingThread(
                    scaling, planner_status, self.use_loaders, self._events
                )
                self._scaling.begin()
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
        if self._scaling is not None:
            self._scaling.close()
        super().close()
        atexit.unregister(self.close)
        self._close_clients()
        for client in self._former_clients:
            client.close()
        if hasattr(self, "_info"):
            remove_endpoint(self._file, self._registry.endpoint)
        self._run(self._registry.close())  # first: it would take loaders that end for dead
        for process in self._processes:
            process.ask_to_end()
        self._standbys.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        for host in self._hosts:
            host.close()
        for process in self._processes:
            process.end()
        for succession in self._processes:
            succession.close_connections()

    def _made_roles(
        self, state: Mapping[str, Any] | None, plan_log: str | os.PathLike[str] | None
    ) -> dict[str, Any]:
        """Loaders, planner and constructors of `JobInfo`."""
        layout = self._layout
        loaders = [each.handle() for each in self._processes]
        log = None if plan_log is None else os.path.abspath(plan_log)
        given = (layout, loaders, state, log, self._store)
        planner = self._made("the Planner", DirectRoad, 1, make_planner, *given)
        constructors = self._made_constructors(layout, loaders, planner)
        return {"loaders": tuple(loaders), "planner": planner, "constructors": constructors}

    def _made_constructors(
        self, layout: SourceLayout, loaders: list[RemoteHandle], planner: RemoteHandle
    ) -> tuple[tuple[tuple[int, ...], RemoteHandle], ...]:
        """Those of `JobInfo`."""
        ranks, constructors = self.job.tree.ranks, []
        for number, groups in enumerate(self._groups):
            role, threads = f"Data Constructor {number}", constructor_threads(self.job, len(groups))
            given = (layout, loaders, planner, groups)
            made = self._made(role, ThreadRoad, threads, make_constructor, *given)
            constructors.append((tuple(sorted(ranks[:, groups].ravel().tolist())), made))
        return tuple(constructors)

    def _kill(self, role: str) -> None:
        """Kills the process of a loader."""
        for each in self._processes:
            if each.name == role:
                each.kill()

    def status(self) -> dict[str, Any]:
        scaling = self._scaling
        scaled = [] if scaling is None else list(scaling.changes)
        short = [] if scaling is None else list(scaling.short)
        return {**super().status(), "scaled": scaled, "short": short}

    def use_loaders(self, loaders: Loaders) -> None:
        """Goes on with other loaders, and changes no batch: those that are new are started, read
        what comes next, and are used from the next plan on; then those that are not among them end.
        Until then trainers get what the others prepare.

        Args:
            loaders: see `evenstep.service.start`.

        Raises:
            ConfigurationError: a new loader cannot open its sources; the others go on.
        """
        self._check_open()
        with self._changing:
            layout = layout_of(self.job, loaders, self._stripe)
            left, following, begun = list(self._processes), [], []
            try:
                for part in self.job.loader_jobs(layout, first=self._started):
                    found = next((each for each in left if each.job.does_as(part)), None)
                    if found is None:
                        found = LoaderSuccession(part, self._patience, self._standbys)
                        begun.append(found)
                    else:
                        left.remove(found)
                    following.append(found)
                handles = [each.handle() for each in following]
                self._read_ahead([each.handle() for each in begun])
            except BaseException:
                for each in begun:
                    each.end()
                raise
            self._started += len(layout.shares)
            self._processes, self._layout = following, layout
            self._info = replace(self._info, loaders=tuple(handles))
            self._run(self._registry.use_loaders(handles))
            replies = []
            for role, host in zip(self._roles, self._hosts):  # also of meshes before
                timed = [handle.using(timer=host.timer) for handle in handles]
                replies.append(role.send("use_loaders", timed, layout))
            results(replies)
            for each in left:
                each.ask_to_end()
            for each in left:
                each.end()
                each.close_connections()

    def remesh(self, mesh: Any, at_step: int | None = None) -> None:
        """Goes on for another mesh from a step on; see `LocalService.remesh`. Clients of the mesh
        before, in all processes, get the steps before it, and then `MeshChangedError`; clients that
        are made from now on are of the new mesh, and begin there.

        Args:
            mesh: see `LocalService.remesh`.
            at_step: None is the first step that no client has requested. An earlier one is for
                ranks that are lost: clients of the mesh before, which may have it already, must not
                take any more steps.

        Raises:
            ConfigurationError: a client has taken the step already, or the job does not go with the
                mesh.
            EvenstepError: a step before it cannot be planned.
        """
        self._check_open()
        with self._changing:
            job = self.job.on(mesh)
            count = self._constructors
            groups = groups_of(job, None if count is None else min(count, job.tree.sizes["DP"]))
            before = [handle for _, handle in self._info.constructors]
            ends: int | None = None
            try:
                held = results([each.send("hold") for each in before])
                reached = max(self._info.step, *(taken for taken, _ in held))
                free = max(self._info.step, *(begun + 1 for _, begun in held))
                step = free if at_step is None else at_step
                if step < reached:
                    raise ConfigurationError(
                        f"at_step={step}, but a client comes to step {reached} next; choose that "
                        "or a later one"
                    )
                call(self._info.planner, "remesh", job, step)
                ends = step
            finally:
                results([each.send("end_at", ends) for each in before])
            self._change_mesh(job, groups, step)

    def _change_mesh(self, job: Job, groups: list[list[int]], step: int) -> None:
        info = self._info
        results([loader.send("drop_from", step) for loader in info.loaders])
        self.job, self._groups = job, groups
        constructors = self._made_constructors(self._layout, list(info.loaders), info.planner)
        self._info = replace(info, tree=job.tree, step=step, constructors=constructors)
        self._run(self._registry.use_mesh(self._info))
        self._former_clients += self._clients
        self._clients = []

    def _read_ahead(self, loaders: Sequence[RemoteHandle]) -> None:
        """Has loaders prepare what comes next of their sources."""
        reached = call(self._info.planner, "reached")
        asked = []
        for handle, sources in zip(loaders, results([each.send("describe") for each in loaders])):
            messages: list[Message] = [
                ("ahead", (name, reached[name][0], 2 * reached[name][1]))
                for name in sources
                if name in reached
            ]
            if messages:
                asked.append(handle.send_all(messages))
        results(asked)

    def _made(
        self, role: str, road: type[ThreadRoad], threads: int, make: Any, *arguments: Any
    ) -> RemoteHandle:
        """A role in threads of this process."""
        host = RoleHost()
        self._hosts.append(host)
        host.make_role(make, self.job, *arguments, threads=threads)
        host.open_sockets("role")
        self._roles.append(RemoteHandle.at(role, road(host), os.getpid(), _HERE))
        return self._roles[-1]

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(_CLOSE_SECONDS)
