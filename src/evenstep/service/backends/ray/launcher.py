"""`Launcher`: creates the actors of a job, and ends them.

All actors of a job's start are created at once. The planner and constructors wait until the
registry tells them the job's state, also when Ray restarts them.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backends.ray.actor_options import ActorPlacement, actor_class, cpus_per_actor
from evenstep.service.backends.ray.actors import LoaderActor, RoleActor
from evenstep.service.backends.ray.discovery import namespace_of
from evenstep.service.backends.ray.locators import (
    LoaderActors,
    LoaderLocator,
    RayLocator,
    import_ray,
    location_in,
)
from evenstep.service.backends.ray.registry_actor import JobRegistryActor, RegistryKeeper
from evenstep.service.job.job import Job
from evenstep.service.job.roles import (
    LOADER_THREADS,
    constructor_name,
    constructor_threads,
    ranks_of,
)
from evenstep.service.job.source_layout import LoaderJob, SourceLayout
from evenstep.service.planner.store.run_store import RunPlace
from evenstep.service.remote.channels import RolePlace, cause_of_death
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import Constructors, JobState
from evenstep.service.remote.role_makers import make_loader, restart_constructor, restart_planner
from evenstep.service.start_options import RayOptions, StartOptions
from evenstep.service.transport.endpoint import Keys

_REGISTRY = "the registry"
_CLOSE_TIMEOUT = 10.0  # seconds in which roles end their own processes
_RETRY_INTERVAL = 0.2  # seconds
_LEAST_TIMEOUT = 0.1  # seconds to wait for what may be ready, after the patience is spent


class Launcher:
    """The actors of one run of a job. `end` ends those that exist, however far it has come."""

    def __init__(
        self,
        job: Job,
        layout: SourceLayout,
        groups: Sequence[Sequence[int]],
        options: StartOptions,
        ray: RayOptions,
    ) -> None:
        """
        Args:
            layout: of the first loaders.
            groups: [constructors] the data-parallel groups of each.

        Raises:
            ConfigurationError: see `ActorPlacement`.
        """
        self._job, self._layout, self._groups = job, layout, groups
        self._faults, self._events, self._cpus = options.faults, options.logs.events, ray.cpus
        self._placement = ActorPlacement(
            ray.placement or {},
            loaders=len(layout.shares),
            constructors=len(groups),
            standbys=self._faults.standbys,
        )
        self._space = namespace_of(options.name)
        self.run_id = time.time_ns()
        self._keys = Keys.new()
        self._actors: dict[str, Any] = {}
        """By role, Ray's handles."""
        self._sent: list[Any] = []
        """References to what actors are made from. Kept, as Ray may restart the actors."""
        self._paths = [os.path.abspath(path) for path in sys.path]
        self._loader_actors = LoaderActors(self._space, self.run_id)
        locator = self._locator("registry")
        self.registry = RemoteHandle(RolePlace(_REGISTRY, None, locator))
        self._keeper: RegistryKeeper | None = None

    def create(
        self, store: RunPlace | None, seen: RunPlace | None
    ) -> tuple[RemoteHandle, list[ActorLoader], Constructors]:
        """Creates the registry, and the planner, loaders and constructors that it returns.

        Raises:
            ConfigurationError: too few CPUs.
        """
        job, layout, standbys = self._job, self._layout, self._faults.standbys
        count = len(layout.shares) + standbys + len(self._groups) + 1
        self._first_cpus = cpus = cpus_per_actor(import_ray(), self._cpus, count)
        actors = self._loader_actors if standbys else None
        given = self._locator("registry"), self._keys, actors, self._events, self._faults.hung_after
        # Clients ask where it is before it knows its job.
        calls = len(job.tree) + 100
        self._start(JobRegistryActor, "registry", _REGISTRY, 0, *given, calls=calls)
        loaders = [self._create_loader(part, cpus) for part in job.loader_jobs(layout)]
        more = self.registry, seen, store
        planner = self._create("planner", "the Planner", cpus, 1, restart_planner, job, *more)
        return planner, loaders, self._create_constructors(job, 0, self._groups, cpus)

    def start(self, job_state: JobState) -> None:
        """Tells the registry the job's state, for which all wait; returns when all are ready.

        Raises:
            ConfigurationError: an actor was not ready in time.
            EvenstepError: what a role raised when it was made.
        """
        deadline = time.monotonic() + self._faults.patience
        self._keeper = RegistryKeeper(self._actors[_REGISTRY], job_state)
        self._await(self._actors, deadline)
        self.registry.place.location()
        for handle in job_state.info.roles:
            handle.place.location()
        for number in range(self._faults.standbys):
            role, cpus = f"standby {number}", self._first_cpus
            self._create_loader_actor(f"standby-{number}", role, None, cpus)

    def tell(self, job_state: JobState) -> None:
        """See `RegistryKeeper.tell`."""
        assert self._keeper is not None
        self._keeper.tell(job_state)

    # While the job runs

    def begin_loader(self, part: LoaderJob) -> ActorLoader:
        """Creates a loader. It shares the CPUs of those that are there, unless `cpus` is given."""
        deadline = time.monotonic() + self._faults.patience
        loader = self._create_loader(part, self._cpus or 0.0)
        loader.wait = lambda: self._await([part.role], deadline)
        return loader

    def begin_constructors(
        self, job: Job, mesh: int, groups: Sequence[Sequence[int]]
    ) -> Constructors:
        """Creates constructors of another mesh, and returns when they are ready.

        Raises:
            ConfigurationError: they were not in time.
        """
        deadline = time.monotonic() + self._faults.patience
        made = self._create_constructors(job, mesh, groups, self._cpus or 0.0)
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

    def end_loader(self, part: LoaderJob) -> None:
        """Ends the actor that runs a loader. Idempotent."""
        created = self._actors.pop(part.role, None)
        if created is None:
            return
        running = []
        if self._faults.standbys:
            said = self._loader_actors.said()
            running = [actor for actor, (number, *_) in said if number == part.number]
        _end(running or [created])

    # Actors

    def _create_loader(self, part: LoaderJob, cpus: float) -> ActorLoader:
        role, name = part.role, f"loader-{part.number}"
        if not self._faults.standbys:
            handle = self._create(name, role, cpus, LOADER_THREADS, make_loader, part)
        else:
            self._create_loader_actor(name, role, part, cpus)
            locator = LoaderLocator(self._loader_actors, part.part)
            handle = RemoteHandle(RolePlace(role, None, locator))
        return ActorLoader(part, handle, self)

    def _create_loader_actor(
        self, name: str, role: str, part: LoaderJob | None, cpus: float
    ) -> None:
        """One of the loaders of a job with standbys, or a standby."""
        given = import_ray().cloudpickle.dumps(self._all_sources)
        its_part = None if part is None else part.part
        self._start(LoaderActor, name, role, cpus, given, self._paths, self._keys, its_part)

    @cached_property
    def _all_sources(self) -> Any:
        """A reference to the job of a loader of all sources."""
        job, layout = self._job, self._layout
        whole = job.for_loader(job.names, workers=max(layout.workers, default=None))
        return self._put(import_ray().cloudpickle.dumps(whole))

    def _create_constructors(
        self, job: Job, mesh: int, groups: Sequence[Sequence[int]], cpus: float
    ) -> Constructors:
        made, whole = [], self._put(import_ray().cloudpickle.dumps(job))
        for number, each in enumerate(groups):
            name = f"constructor-{number}" + (f"-{mesh}" if mesh else "")
            role, threads = constructor_name(number, mesh), constructor_threads(job, len(each))
            more = whole, self.registry, list(each), mesh
            handle = self._create(name, role, cpus, threads, restart_constructor, *more)
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
            job: or a reference to it.
        """
        if isinstance(job, (Job, LoaderJob)):
            job = self._put(import_ray().cloudpickle.dumps(job))
        given = import_ray().cloudpickle.dumps([job, self._put(more)])
        self._start(RoleActor, name, role, cpus, make, given, self._paths, self._keys, threads)
        return RemoteHandle(RolePlace(role, None, self._locator(name)))

    def _start(
        self, kind: type, name: str, role: str, cpus: float, *arguments: Any, **options: int
    ) -> None:
        made = actor_class(import_ray(), kind, cpus, **options).options(
            name=self._locator(name).name, namespace=self._space, **self._placement.of(name)
        )
        self._actors[role] = made.remote(*arguments)

    def _put(self, value: Any) -> Any:
        self._sent.append(import_ray().put(value))
        return self._sent[-1]

    def _locator(self, name: str) -> RayLocator:
        return RayLocator(self._space, f"{self.run_id}-{name}")

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
                        f"{role} was not ready within {self._faults.patience:g} seconds, with "
                        f"{free:g} CPUs free; raise patience=, or lower cpus= or loaders="
                    )
                try:
                    location_in(ray.get(asked))
                    break
                except ray.exceptions.RayTaskError:
                    raise
                except ray.exceptions.RayError as error:  # it has died, and restarts
                    if time.monotonic() > deadline:
                        raise cause_of_death(role, error) from error
                    time.sleep(_RETRY_INTERVAL)


class ActorLoader:
    """An `OwnedLoader`: a loader as the process that starts the service sees it."""

    def __init__(self, job: LoaderJob, handle: RemoteHandle, launcher: Launcher) -> None:
        self.job, self._handle, self._launcher = job, handle, launcher
        self.wait: Callable[[], None] | None = None
        """Returns when its sources are open; None if they are."""

    def handle(self) -> RemoteHandle:
        """The loader, once its sources are open.

        Raises:
            ConfigurationError: it was not ready in time, or a source cannot be opened.
        """
        wait, self.wait = self.wait, None
        if wait is not None:
            wait()
        return self._handle

    def ask_to_end(self) -> None:
        """Nothing: `end` does not take long."""

    def end(self) -> None:
        """Ends its actor. Idempotent."""
        self._launcher.end_loader(self.job)
        self._handle.place.disconnect()


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
