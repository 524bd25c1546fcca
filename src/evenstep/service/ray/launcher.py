"""`Launcher`: creates the actors of a job, and ends them.

All that a job begins with are created at once. Planner and constructors wait for the registry to
say how the job stands, also when Ray makes them again.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backend_common import (
    LOADER_THREADS,
    constructor_name,
    constructor_threads,
    ranks_of,
)
from evenstep.service.job import Job
from evenstep.service.ray.actor_loader import ActorLoader
from evenstep.service.ray.actor_options import (
    cpus_per_actor,
    loader_actor,
    registry_actor,
    role_actor,
)
from evenstep.service.ray.discovery import namespace_of
from evenstep.service.ray.finder import RayFinder, location_in
from evenstep.service.ray.loader_finder import LoaderActors, LoaderFinder
from evenstep.service.ray.placement import ActorPlacement
from evenstep.service.ray.registry_keeper import RegistryKeeper
from evenstep.service.ray.road import import_ray
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import Constructors, JobInfo
from evenstep.service.remote.role_limits import RoleLimits
from evenstep.service.remote.role_makers import (
    make_constructor_anew,
    make_loader,
    make_planner_anew,
)
from evenstep.service.remote.role_place import RolePlace, cause_of_death
from evenstep.service.remote.standing import Standing
from evenstep.service.source_layout import SourceLayout
from evenstep.service.source_loader import LoaderJob
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
    limits: RoleLimits
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
        self._actors: dict[str, Any] = {}
        """By role, Ray's handles."""
        self._sent: list[Any] = []
        """References to what actors are made from. Kept, as they may be made again."""
        self._paths = [os.path.abspath(path) for path in sys.path]
        self._loader_actors = LoaderActors(self._space, self._run_id)
        finder = self._finder("registry")
        self._registry = RemoteHandle(RolePlace(_REGISTRY, None, finder))
        self._keeper: RegistryKeeper | None = None

    def launch(self) -> tuple[Standing, list[ActorLoader]]:
        """Creates all actors, and returns when all are ready.

        Raises:
            ConfigurationError: too few CPUs, or actors that were not ready in time.
            EvenstepError: what a role raised when it was made.
        """
        ray, options, job = import_ray(), self._options, self._job
        deadline = time.monotonic() + options.patience
        layout = options.layout
        count = len(layout.shares) + options.standbys + len(options.groups) + 1
        cpus = cpus_per_actor(ray, options.cpus, count)
        finder = self._finder("registry")
        self._actors[_REGISTRY] = registry = (
            registry_actor(ray, len(job.tree))
            .options(name=finder.name, namespace=self._space)
            .remote(
                finder,
                self._keys,
                self._loader_actors if options.standbys else None,
                options.events,
                options.limits,
            )
        )
        loaders = [self._create_loader(part, cpus) for part in job.loader_jobs(layout)]
        whole = self._put(ray.cloudpickle.dumps(job))
        log = None if options.plan_log is None else os.path.abspath(options.plan_log)
        given = self._registry, log, options.store
        planner = self._create("planner", "the Planner", cpus, 1, make_planner_anew, whole, *given)
        constructors = self._create_constructors(job, 0, options.groups, cpus, whole)
        info = JobInfo(
            name=options.name,
            backend="ray",
            run_id=self._run_id,
            fingerprint=job.fingerprint,
            tree=job.tree,
            prefetch=job.prefetch,
            warn_after=job.warn_after,
            step=0 if options.state is None else int(options.state["step"]),
            registry=self._registry,
            planner=planner,
            loaders=tuple(handle for _, handle in loaders),
            constructors=constructors,
            step_log=options.step_log,
        )
        standing = Standing(info=info, layout=layout, tree=job.tree, state=options.state)
        self._keeper = RegistryKeeper(registry, standing)
        self._keeper.begin()
        self._await(self._actors, deadline)
        info.registry.place.location()
        for handle in info.roles:
            handle.place.location()
        for number in range(options.standbys):
            self._create_loader_actor(f"standby-{number}", f"standby {number}", None, cpus)
        return standing, [self._owned(part, handle) for part, handle in loaders]

    def tell(self, standing: Standing) -> None:
        """See `RegistryKeeper.tell`."""
        assert self._keeper is not None
        self._keeper.tell(standing)

    # While the job runs

    def begin_loader(self, part: LoaderJob) -> ActorLoader:
        """Creates a loader. It shares the CPUs of those that are there, unless `cpus` is given."""
        part, handle = self._create_loader(part, self._options.cpus or 0.0)
        deadline = time.monotonic() + self._options.patience
        return self._owned(part, handle, lambda: self._await([handle.role], deadline))

    def begin_constructors(
        self, job: Job, mesh: int, groups: Sequence[Sequence[int]]
    ) -> Constructors:
        """Creates constructors of another mesh, and returns when they are ready.

        Raises:
            ConfigurationError: they were not in time.
        """
        deadline = time.monotonic() + self._options.patience
        whole = self._put(import_ray().cloudpickle.dumps(job))
        made = self._create_constructors(job, mesh, groups, self._options.cpus or 0.0, whole)
        self._await([handle.role for _, handle in made], deadline)
        for _, handle in made:
            handle.place.location()
        return made

    def end_roles(self, handles: Sequence[RemoteHandle]) -> None:
        """Ends the actors of roles."""
        _end([self._actors.pop(handle.role) for handle in handles])

    def end(self) -> None:
        """Ends all actors."""
        if self._keeper is not None:
            self._keeper.close()
        others = [actor for role, actor in self._actors.items() if role != _REGISTRY]
        if _REGISTRY in self._actors:
            _end([self._actors[_REGISTRY]])  # first: it would take roles that end for dead
        _end(others)

    def _owned(
        self, part: LoaderJob, handle: RemoteHandle, wait: Callable[[], None] | None = None
    ) -> ActorLoader:
        def end() -> None:
            created = self._actors.pop(handle.role, None)
            if created is None:
                return
            playing = []
            if self._options.standbys:
                said = self._loader_actors.said()
                playing = [actor for actor, (number, *_) in said if number == part.number]
            _end(playing or [created])

        return ActorLoader(part, handle, wait, end)

    # Actors

    def _create_loader(self, part: LoaderJob, cpus: float) -> tuple[LoaderJob, RemoteHandle]:
        role, name, ray = part.role, f"loader-{part.number}", import_ray()
        if not self._options.standbys:
            given = self._put(ray.cloudpickle.dumps(part))
            return part, self._create(name, role, cpus, LOADER_THREADS, make_loader, given)
        self._create_loader_actor(name, role, part, cpus)
        finder = LoaderFinder(self._loader_actors, part.part)
        return part, RemoteHandle(RolePlace(role, None, finder))

    def _create_loader_actor(
        self, name: str, role: str, part: LoaderJob | None, cpus: float
    ) -> None:
        """One of the loaders of a job with standbys, or a standby."""
        ray = import_ray()
        self._actors[role] = (
            loader_actor(ray, cpus)
            .options(
                name=self._finder(name).name,
                namespace=self._space,
                max_concurrency=LOADER_THREADS,
                **self._options.placement.of(name),
            )
            .remote(
                ray.cloudpickle.dumps(self._all_sources),
                self._paths,
                self._keys,
                None if part is None else part.part,
            )
        )

    @cached_property
    def _all_sources(self) -> Any:
        """A reference to the job of a loader of all sources."""
        job, layout = self._job, self._options.layout
        whole = job.for_loader(job.names, workers=max(layout.workers, default=None))
        return self._put(import_ray().cloudpickle.dumps(whole))

    def _create_constructors(
        self, job: Job, mesh: int, groups: Sequence[Sequence[int]], cpus: float, whole: Any
    ) -> Constructors:
        """
        Args:
            whole: a reference to the job.
        """
        made = []
        for number, each in enumerate(groups):
            handle = self._create(
                f"constructor-{number}" + (f"-{mesh}" if mesh else ""),
                constructor_name(number, mesh),
                cpus,
                constructor_threads(job, len(each)),
                make_constructor_anew,
                whole,
                self._registry,
                list(each),
                mesh,
            )
            made.append((ranks_of(job, each), handle))
        return tuple(made)

    def _create(
        self,
        name: str,
        role: str,
        cpus: float,
        threads: int,
        make: Callable[..., Any],
        job: Any,
        *more: Any,
    ) -> RemoteHandle:
        """An actor.

        Args:
            job: a reference to it.
        """
        ray = import_ray()
        finder = self._finder(name)
        self._actors[role] = (
            role_actor(ray, cpus)
            .options(
                name=finder.name,
                namespace=self._space,
                max_concurrency=threads,
                **self._options.placement.of(name),
            )
            .remote(
                make,
                ray.cloudpickle.dumps([job, self._put(more)]),
                self._paths,
                self._keys,
                threads,
            )
        )
        return RemoteHandle(RolePlace(role, None, finder))

    def _put(self, value: Any) -> Any:
        self._sent.append(import_ray().put(value))
        return self._sent[-1]

    def _finder(self, name: str) -> RayFinder:
        return RayFinder(self._space, f"{self._run_id}-{name}")

    def _await(self, roles: Iterable[str], deadline: float) -> None:
        """Waits until roles are made.

        Raises:
            ConfigurationError: one is late.
            EvenstepError: one could not be made.
        """
        ray = import_ray()
        for role in list(roles):
            actor = self._actors[role]
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


def _end(actors: Sequence[Any]) -> None:
    """Ends actors, of which some may have died."""
    ray = import_ray()
    with suppress(Exception):
        closing = [actor.close.remote() for actor in actors]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT)
    for actor in actors:
        with suppress(Exception):
            ray.kill(actor)
