"""`Launcher`: creates the actors of a job, and ends them.

All are created at once. Each finds those that it needs by their names, and waits for them.
"""

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
from evenstep.service.ray.actor_options import (
    cpus_per_actor,
    loader_actor,
    registry_actor,
    role_actor,
)
from evenstep.service.ray.discovery import namespace_of
from evenstep.service.ray.finder import LoaderFinder, RayFinder, location_in
from evenstep.service.ray.placement import ActorPlacement
from evenstep.service.ray.road import import_ray
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.role_makers import make_constructor, make_loader, make_planner
from evenstep.service.remote.role_place import RolePlace, cause_of_death
from evenstep.service.source_layout import SourceLayout
from evenstep.service.store.runs import RunPlace
from evenstep.service.transport.endpoint import Keys

_REGISTRY = "the registry"
_CLOSE_TIMEOUT = 10.0  # seconds in which roles end their own processes
_RETRY_INTERVAL = 0.2  # seconds
_LEAST_TIMEOUT = 0.1  # seconds to wait for what may be ready, after the patience is spent


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """See `RayService`."""

    name: str
    layout: SourceLayout
    standbys: int
    events: str | None
    groups: Sequence[Sequence[int]]
    """[constructors] the data-parallel groups of each."""
    state: Mapping[str, Any] | None
    plan_log: str | os.PathLike[str] | None
    store: RunPlace | None
    cpus: float | None
    placement: ActorPlacement
    patience: float
    sockets: bool
    step_log: str | None


class Launcher:
    """The actors of one run of a job. `end` ends those that exist, however far `launch` came."""

    def __init__(self, job: Job, options: LaunchOptions) -> None:
        self._job, self._options = job, options
        self._space = namespace_of(options.name)
        self._run_id = time.time_ns()
        self._keys = Keys.new() if options.sockets else None
        self._actors: list[tuple[str, Any]] = []
        """Roles and Ray's handles."""
        self._sent: list[Any] = []
        """References to what actors are made from, and `_parts`, loaders. Kept, as they may be made
        again."""
        self._parts: list[Any] = []
        self._paths = [os.path.abspath(path) for path in sys.path]

    def launch(self) -> JobInfo:
        """Creates all actors, and returns when all are ready.

        Raises:
            ConfigurationError: too few CPUs, or actors that were not ready in time.
            EvenstepError: what a role raised when it was made.
        """
        ray, options, tree = import_ray(), self._options, self._job.tree
        deadline = time.monotonic() + options.patience
        planner, loaders, constructors = self._create_roles()
        registry_finder = self._finder("registry")
        info = JobInfo(
            name=options.name,
            backend="ray",
            run_id=self._run_id,
            fingerprint=self._job.fingerprint,
            tree=tree,
            prefetch=self._job.prefetch,
            warn_after=self._job.warn_after,
            step=0 if options.state is None else int(options.state["step"]),
            registry=RemoteHandle(RolePlace(_REGISTRY, None, registry_finder)),
            planner=planner,
            loaders=tuple(loaders),
            constructors=tuple(
                (tuple(sorted(tree.ranks[:, list(groups)].ravel().tolist())), handle)
                for groups, handle in zip(options.groups, constructors)
            ),
            step_log=options.step_log,
        )
        registry = registry_actor(ray, len(tree)).options(
            name=registry_finder.name, namespace=self._space
        )
        found_by = self._loader_finder(0) if options.standbys else None
        created = registry.remote(info, registry_finder, self._keys, found_by, options.events)
        self._actors.append((_REGISTRY, created))
        self._await_all(deadline)
        info.registry.place.location()
        for handle in info.roles:
            handle.place.location()
        for number in range(options.standbys):
            self._create_loader(f"standby-{number}", f"standby {number}", None)
        return info

    def end(self) -> None:
        """Ends all actors."""
        ray = import_ray()
        registry = [actor for role, actor in self._actors if role == _REGISTRY]
        others = [actor for role, actor in self._actors if role != _REGISTRY]
        for actors in (registry, others):  # the registry would take roles that end for dead
            with suppress(Exception):  # actors that died already are ended below like all others
                closing = [actor.close.remote() for actor in actors]
                if closing:
                    ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT)
        for _, actor in self._actors:
            with suppress(Exception):
                ray.kill(actor)

    def _create_roles(self) -> tuple[RemoteHandle, list[RemoteHandle], list[RemoteHandle]]:
        """Planner, loaders and constructors."""
        ray, job, options = import_ray(), self._job, self._options
        layout = options.layout
        count = len(layout.shares) + options.standbys + len(options.groups) + 1
        self._cpus = cpus_per_actor(ray, options.cpus, count)
        actor_class = role_actor(ray, self._cpus)

        def create(
            name: str, role: str, threads: int, make: Callable[..., Any], job: Any, *more: Any
        ) -> RemoteHandle:
            finder = self._finder(name)
            self._sent += (given := [job, ray.put(more)])
            actor = actor_class.options(
                name=finder.name,
                namespace=self._space,
                max_concurrency=threads,
                **options.placement.of(name),
            ).remote(make, ray.cloudpickle.dumps(given), self._paths, self._keys, threads)
            self._actors.append((role, actor))
            return RemoteHandle(RolePlace(role, None, finder))

        parts = [ray.put(ray.cloudpickle.dumps(part)) for part in job.loader_jobs(layout)]
        self._parts = parts
        loaders = []
        for n, part in enumerate(parts):
            role, name = f"Source Loader {n}", f"loader-{n}"
            if options.standbys:
                self._create_loader(name, role, n)
                loaders.append(RemoteHandle(RolePlace(role, None, self._loader_finder(n))))
            else:
                loaders.append(create(name, role, LOADER_THREADS, make_loader, part))
        whole = ray.put(ray.cloudpickle.dumps(job))
        log = None if options.plan_log is None else os.path.abspath(options.plan_log)
        more: tuple[Any, ...] = (layout, loaders, options.state, log, options.store)
        planner = create("planner", "the Planner", 1, make_planner, whole, *more)
        constructors = []
        for n, groups in enumerate(options.groups):
            role, threads = f"Data Constructor {n}", constructor_threads(job, len(groups))
            more = (layout, loaders, planner, list(groups))
            constructors.append(
                create(f"constructor-{n}", role, threads, make_constructor, whole, *more)
            )
        return planner, loaders, constructors

    def _create_loader(self, name: str, role: str, number: int | None) -> None:
        """One of the loaders of a job with standbys, or a standby."""
        ray, options = import_ray(), self._options
        actor = (
            loader_actor(ray, self._cpus)
            .options(
                name=self._finder(name).name,
                namespace=self._space,
                max_concurrency=LOADER_THREADS,
                **options.placement.of(name),
            )
            .remote(ray.cloudpickle.dumps(self._parts), self._paths, self._keys, number)
        )
        self._actors.append((role, actor))

    def _loader_finder(self, number: int) -> LoaderFinder:
        loaders, options = len(self._options.layout.shares), self._options
        names = [f"loader-{n}" for n in range(loaders)]
        names += [f"standby-{n}" for n in range(options.standbys)]
        return LoaderFinder(
            self._space, tuple(self._finder(name).name for name in names), loaders, number
        )

    def _finder(self, name: str) -> RayFinder:
        return RayFinder(self._space, f"{self._run_id}-{name}")

    def _await_all(self, deadline: float) -> None:
        """Waits until all roles are made.

        Raises:
            ConfigurationError: one is late.
            EvenstepError: one could not be made.
        """
        ray = import_ray()
        for role, actor in self._actors:
            while True:
                asked = actor.location.remote()
                left = max(deadline - time.monotonic(), _LEAST_TIMEOUT)
                if not ray.wait([asked], timeout=left)[0]:
                    free = ray.available_resources().get("CPU", 0.0)
                    raise ConfigurationError(
                        f"{role} was not ready within {self._options.patience:g} seconds, and "
                        f"the cluster has {free:g} CPUs free; raise patience=, or lower cpus= or "
                        "loaders="
                    )
                try:
                    location_in(ray.get(asked), actor)
                    break
                except ray.exceptions.RayTaskError:
                    raise
                except ray.exceptions.RayError as error:  # it has died, and is made again
                    if time.monotonic() > deadline:
                        raise cause_of_death(role, error) from error
                    time.sleep(_RETRY_INTERVAL)
