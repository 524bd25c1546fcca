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
from evenstep.service.job import Job
from evenstep.service.ray.actor_options import (
    constructor_threads,
    cpus_per_actor,
    registry_actor,
    role_actor,
)
from evenstep.service.ray.actors import make_constructor, make_loader, make_planner
from evenstep.service.ray.handles import RayHandle, cause_of_death, encode_messages, import_ray
from evenstep.service.ray.registry import JobInfo, namespace_of
from evenstep.service.source_layout import SourceLayout

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
    cpus: float | None
    patience: float


class Launcher:
    """The actors of one run of a job. `end` ends those that exist, however far `launch` came."""

    def __init__(self, job: Job, options: LaunchOptions) -> None:
        self._job, self._options = job, options
        self._loaders: list[RayHandle] = []
        self._constructors: list[RayHandle] = []
        self._planner: RayHandle | None = None
        self.registry: Any = None
        """Ray's handle of it; None before it is created."""

    def launch(self) -> JobInfo:
        """Creates all actors, and returns when all are ready.

        Raises:
            ConfigurationError: too few CPUs, or actors that were not ready in time.
            EvenstepError: what a role raised when it was made.
        """
        ray, options = import_ray(), self._options
        run_id = time.time_ns()
        deadline = time.monotonic() + options.patience
        planner = self._create_actors(run_id)
        self._make_roles(planner, deadline)
        tree = self._job.tree
        info = JobInfo(
            name=options.name,
            run_id=run_id,
            fingerprint=self._job.fingerprint,
            tree=tree,
            prefetch=self._job.prefetch,
            warn_after=self._job.warn_after,
            step=0 if options.state is None else int(options.state["step"]),
            registry=RayHandle(self.registry, "the registry"),
            planner=planner,
            loaders=tuple(self._loaders),
            constructors=tuple(
                (tuple(sorted(tree.ranks[:, list(groups)].ravel().tolist())), handle)
                for groups, handle in zip(options.groups, self._constructors)
            ),
        )
        try:
            opened: JobInfo = ray.get(self.registry.open.remote(info))
        except ray.exceptions.RayActorError as error:
            raise cause_of_death("the registry", error) from error
        return opened

    def end(self) -> None:
        """Ends all actors."""
        ray = import_ray()
        with suppress(Exception):  # actors that died already are ended below like all others
            self._close_roles(ray)
        planner = [] if self._planner is None else [self._planner]
        handles = [*self._loaders, *planner, *self._constructors]
        for actor in [*(handle.actor for handle in handles), self.registry]:
            if actor is not None:
                with suppress(Exception):
                    ray.kill(actor)

    def _close_roles(self, ray: Any) -> None:
        """Closes the roles that have processes or clients of their own to end."""
        if self.registry is not None:
            ray.wait([self.registry.close.remote()], timeout=_CLOSE_TIMEOUT)
        close = encode_messages([("close", ())])
        closing = [handle.actor.handle.remote(close) for handle in self._loaders]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSE_TIMEOUT)

    def _create_actors(self, run_id: int) -> RayHandle:
        """Creates actors without roles; returns the planner's."""
        ray, options = import_ray(), self._options
        space = namespace_of(options.name)
        count = len(options.layout.shares) + len(options.groups) + 1
        actor_class = role_actor(ray, cpus_per_actor(ray, options.cpus, count))

        def create(name: str, role: str, threads: int = 1) -> RayHandle:
            actor = actor_class.options(
                name=f"{run_id}-{name}", namespace=space, max_concurrency=threads
            ).remote()
            return RayHandle(actor, role)

        for n in range(len(options.layout.shares)):
            self._loaders.append(create(f"loader-{n}", f"Source Loader {n}"))
        self._planner = planner = create("planner", "the Planner")
        for n, groups in enumerate(options.groups):
            threads = constructor_threads(self._job, len(groups))
            self._constructors.append(create(f"constructor-{n}", f"Data Constructor {n}", threads))
        registry = registry_actor(ray, len(self._job.tree))
        self.registry = registry.options(name=f"{run_id}-registry", namespace=space).remote()
        return planner

    def _make_roles(self, planner: RayHandle, deadline: float) -> None:
        """Makes loaders, then the planner, which asks them, then constructors. These load torch
        from the start."""
        ray, job, options = import_ray(), self._job, self._options
        layout, loaders = options.layout, self._loaders
        paths = [os.path.abspath(path) for path in sys.path]
        job_and_paths = (ray.put(ray.cloudpickle.dumps(job)), paths)
        module = "evenstep.service.data_constructor"
        preloading = [handle.actor.preload.remote(module) for handle in self._constructors]
        for_loaders = [
            (ray.cloudpickle.dumps(job.for_loader(shares, n)), paths)
            for n, shares in enumerate(layout.shares)
        ]
        self._make(make_loader, loaders, for_loaders, deadline)
        log = None if options.plan_log is None else os.path.abspath(options.plan_log)
        for_planner = (*job_and_paths, layout, loaders, options.state, log)
        self._make(make_planner, [planner], [for_planner], deadline)
        ray.wait(preloading, num_returns=len(preloading), timeout=_left(deadline))
        for_constructors = [
            (*job_and_paths, layout, loaders, planner, list(groups)) for groups in options.groups
        ]
        self._make(make_constructor, self._constructors, for_constructors, deadline)

    def _make(
        self,
        make: Callable[..., Any],
        handles: Sequence[RayHandle],
        arguments: Sequence[tuple[Any, ...]],
        deadline: float,
    ) -> None:
        """Makes one role in each actor, and waits for all of them."""
        ray = import_ray()
        making = [h.actor.make_role.remote(make, *args) for h, args in zip(handles, arguments)]
        _, late = ray.wait(making, num_returns=len(making), timeout=_left(deadline))
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
            handle.process, handle.host = answer.value


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), _LEAST_TIMEOUT)
