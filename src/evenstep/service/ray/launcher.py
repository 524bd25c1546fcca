"""`Launcher`: creates the actors of a job, in the order in which they need each other, and ends
them."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backend_common import LOADER_THREADS, constructor_threads
from evenstep.service.job import Job
from evenstep.service.ray.actor_options import cpus_per_actor, registry_actor, role_actor
from evenstep.service.ray.discovery import namespace_of
from evenstep.service.ray.road import RayRoad, import_ray
from evenstep.service.remote.handles import RemoteHandle, cause_of_death
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.roads import SocketRoad
from evenstep.service.remote.role_makers import make_constructor, make_loader, make_planner
from evenstep.service.source_layout import SourceLayout
from evenstep.service.store.runs import RunPlace
from evenstep.service.transport.endpoint import Keys

_CLOSE_TIMEOUT = 10.0  # seconds in which roles end their own processes
_LEAST_TIMEOUT = 0.1  # seconds to wait for what may be ready, after the patience is spent


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """See `RayService`."""

    name: str
    layout: SourceLayout
    groups: Sequence[Sequence[int]]
    """[constructors] the data-parallel groups of each."""
    state: Mapping[str, Any] | None
    plan_log: str | os.PathLike[str] | None
    store: RunPlace | None
    cpus: float | None
    patience: float
    sockets: bool


class Launcher:
    """The actors of one run of a job. `end` ends those that exist, however far `launch` came."""

    def __init__(self, job: Job, options: LaunchOptions) -> None:
        self._job, self._options = job, options
        self._keys = Keys.new() if options.sockets else None
        self._loaders: list[RemoteHandle] = []
        self._constructors: list[RemoteHandle] = []
        self._planner: RemoteHandle | None = None
        self._actors: dict[str, Any] = {}
        """By role, Ray's handles."""
        self._registry: Any = None

    def launch(self) -> JobInfo:
        """Creates all actors, and returns when all are ready.

        Raises:
            ConfigurationError: too few CPUs, or actors that were not ready in time.
            EvenstepError: what a role raised when it was made.
        """
        ray, options = import_ray(), self._options
        run_id = time.time_ns()
        deadline = time.monotonic() + options.patience
        self._create_actors(run_id)
        self._make_roles(deadline)
        tree = self._job.tree
        assert self._planner is not None
        info = JobInfo(
            name=options.name,
            backend="ray",
            run_id=run_id,
            fingerprint=self._job.fingerprint,
            tree=tree,
            prefetch=self._job.prefetch,
            warn_after=self._job.warn_after,
            step=0 if options.state is None else int(options.state["step"]),
            registry=RemoteHandle("the registry", RayRoad(self._registry)),
            planner=self._planner,
            loaders=tuple(self._loaders),
            constructors=tuple(
                (tuple(sorted(tree.ranks[:, list(groups)].ravel().tolist())), handle)
                for groups, handle in zip(options.groups, self._constructors)
            ),
        )
        watched = [self._by_ray(handle) for handle in info.roles]
        try:
            opened: JobInfo = ray.get(self._registry.begin.remote(info, watched, self._keys))
        except ray.exceptions.RayActorError as error:
            raise cause_of_death("the registry", error) from error
        return opened

    def end(self) -> None:
        """Ends all actors."""
        ray = import_ray()
        with suppress(Exception):  # actors that died already are ended below like all others
            closing = [actor.close.remote() for actor in self._actors.values()]
            if self._registry is not None:
                closing.append(self._registry.close.remote())
            if closing:
                ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT)
        for actor in [*self._actors.values(), self._registry]:
            if actor is not None:
                with suppress(Exception):
                    ray.kill(actor)

    def _by_ray(self, handle: RemoteHandle) -> RemoteHandle:
        """The same role, reached by Ray's calls, by which it is watched."""
        road = RayRoad(self._actors[handle.role])
        return RemoteHandle(handle.role, road, handle.process, handle.host)

    def _create_actors(self, run_id: int) -> None:
        """Creates actors without roles."""
        ray, options = import_ray(), self._options
        space = namespace_of(options.name)
        count = len(options.layout.shares) + len(options.groups) + 1
        actor_class = role_actor(ray, cpus_per_actor(ray, options.cpus, count))

        def create(name: str, role: str, threads: int = 1) -> RemoteHandle:
            actor = actor_class.options(
                name=f"{run_id}-{name}", namespace=space, max_concurrency=threads
            ).remote()
            self._actors[role] = actor
            return RemoteHandle(role, RayRoad(actor))

        for n in range(len(options.layout.shares)):
            self._loaders.append(create(f"loader-{n}", f"Source Loader {n}", LOADER_THREADS))
        self._planner = create("planner", "the Planner")
        for n, groups in enumerate(options.groups):
            threads = constructor_threads(self._job, len(groups))
            self._constructors.append(create(f"constructor-{n}", f"Data Constructor {n}", threads))
        registry = registry_actor(ray, len(self._job.tree))
        self._registry = registry.options(name=f"{run_id}-registry", namespace=space).remote()

    def _make_roles(self, deadline: float) -> None:
        """Makes loaders, then the planner, which asks them, then constructors. These load torch
        from the start."""
        ray, job, options = import_ray(), self._job, self._options
        layout = options.layout
        paths = [os.path.abspath(path) for path in sys.path]
        job_and_paths = (ray.put(ray.cloudpickle.dumps(job)), paths, self._keys)
        module = "evenstep.service.data_constructor"
        preloading = [self._actors[h.role].preload.remote(module) for h in self._constructors]
        for_loaders = [
            (ray.cloudpickle.dumps(part), paths, self._keys, LOADER_THREADS)
            for part in job.loader_jobs(layout)
        ]
        self._loaders = loaders = self._make(make_loader, self._loaders, for_loaders, deadline)
        log = None if options.plan_log is None else os.path.abspath(options.plan_log)
        assert self._planner is not None
        for_planner = (*job_and_paths, 1, layout, loaders, options.state, log, options.store)
        (planner,) = self._make(make_planner, [self._planner], [for_planner], deadline)
        self._planner = planner
        ray.wait(preloading, num_returns=len(preloading), timeout=_left(deadline))
        for_constructors = [
            (*job_and_paths, constructor_threads(job, len(g)), layout, loaders, planner, list(g))
            for g in options.groups
        ]
        self._constructors = self._make(
            make_constructor, self._constructors, for_constructors, deadline
        )

    def _make(
        self,
        make: Callable[..., Any],
        handles: Sequence[RemoteHandle],
        arguments: Sequence[tuple[Any, ...]],
        deadline: float,
    ) -> list[RemoteHandle]:
        """Makes one role in each actor, and waits for all of them; returns their handles."""
        ray = import_ray()
        actors = [self._actors[handle.role] for handle in handles]
        making = [actor.make_role.remote(make, *args) for actor, args in zip(actors, arguments)]
        _, late = ray.wait(making, num_returns=len(making), timeout=_left(deadline))
        made = []
        for handle, reference in zip(handles, making):
            if reference in late:
                free = ray.available_resources().get("CPU", 0.0)
                raise ConfigurationError(
                    f"{handle.name} was not ready within {self._options.patience:g} seconds, and "
                    f"the cluster has {free:g} CPUs free; raise patience=, or lower cpus= or "
                    "loaders="
                )
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                raise cause_of_death(handle.name, error) from error
            if answer.error is not None:
                raise answer.error
            process, host, endpoint = answer.value
            road = handle.road if endpoint is None else SocketRoad(endpoint)
            made.append(RemoteHandle(handle.role, road, process, host))
        return made


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), _LEAST_TIMEOUT)
