"""`RayService`: a job whose roles are actors, from its start to its end.

The process that starts it owns the actors: they end with it, however it ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.service.handles import call
from evenstep.service.job import Job
from evenstep.service.local import groups_of, rank_of
from evenstep.service.ray import actors
from evenstep.service.ray.actor_options import cpus_of, desk_actor, role_actor, threads_of
from evenstep.service.ray.client import RayClient
from evenstep.service.ray.discovery import connect, find
from evenstep.service.ray.handles import RayHandle, died, packed
from evenstep.service.ray.import_ray import import_ray
from evenstep.service.ray.registry import JobInfo, named
from evenstep.service.source_layout import STRIPE, SourceLayout
from evenstep.strategy import LoadingPlan

__all__ = ["AttachedService", "RayService", "attach", "start"]

_CLOSING = 10.0  # seconds that roles have to end what they started


def start(job: Job, **options: Any) -> RayService:
    """Starts a job on Ray; see `RayService`."""
    return RayService(job, **options)


def attach(address: str | None = "auto", name: str = "job") -> AttachedService:
    """A job that another process runs, to look at.

    Raises:
        ConfigurationError: no cluster, or no such job.
    """
    return AttachedService(address, name)


class _Running:
    """What can be asked of a job that runs."""

    _about: JobInfo
    _desk: Any
    _closed = False

    @property
    def name(self) -> str:
        return self._about.name

    @property
    def address(self) -> str:
        """For `evenstep.service.Client`."""
        return str(import_ray().get_runtime_context().gcs_address)

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step, made now if need be; None where the mixture has ended before it."""
        self._check_open()
        plan: LoadingPlan | None = call(self._about.planner, "plan", step)
        return plan

    def status(self) -> dict[str, Any]:
        """JSON-able: what each role is at and has done, and what clients waited; see
        `evenstep.service.metrics`."""
        self._check_open()
        ray = import_ray()
        try:
            status: dict[str, Any] = ray.get(self._desk.status.remote())
        except ray.exceptions.RayActorError as error:
            raise died("the desk", error) from error
        return status

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the service is closed; start the job again")


class AttachedService(_Running):
    """See `attach`. A context manager; the job goes on when it is left."""

    def __init__(self, address: str | None, name: str) -> None:
        self._connected = connect(address or "auto")
        try:
            self._about, self._desk = find(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the cluster. Harmless the second time."""
        self._closed = True
        if self._connected:
            self._connected = False
            import_ray().shutdown()

    def __enter__(self) -> AttachedService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RayService(_Running):
    """A running job. Made by `evenstep.service.start`; a context manager."""

    def __init__(
        self,
        job: Job,
        *,
        address: str | None = None,
        name: str = "job",
        loaders: int = 1,
        constructors: int | None = None,
        state: Mapping[str, Any] | None = None,
        plan_log: str | os.PathLike[str] | None = None,
        stripe: int = STRIPE,
        cpus: float | None = None,
        patience: float = 120.0,
        ray_options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            address: of a cluster; "local" starts one on this machine, which ends with the service.
                None takes part in that of this process or of the environment variable RAY_ADDRESS,
                and starts one where there is none.
            name: by which trainers find it.
            loaders, constructors, state, stripe: see `LocalService`.
            plan_log: a file on the planner's machine.
            cpus: that Ray reserves for each actor, such as 0.5; None is 1, or an equal share of
                what is free.
            patience: seconds within which actors must have opened their sources.
            ray_options: more for ``ray.init``, such as ``num_cpus`` or ``runtime_env``.

        Raises:
            ConfigurationError: no cluster, too few CPUs, a job of this name that runs already, or
                what `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: Ray is not installed.
        """
        check_at_least(1, loaders=loaders)
        groups = groups_of(job, constructors)
        layout = SourceLayout.deal(job.names, loaders, stripe=stripe)
        space = named(name)
        self.job = job
        self._actors: list[RayHandle] = []
        self._clients: list[RayClient] = []
        self._desk = None
        self._began = connect(address, ray_options)
        try:
            self._refuse_twin(name)
            self._begin(job, name, space, layout, groups, state, plan_log, cpus, patience)
        except BaseException:
            self.close()
            raise

    def client(self, rank: int | None = None, **place: int) -> RayClient:
        """The client of a rank, or of its coordinates, in this process; see
        `LocalService.client`. Trainers in other processes make an `evenstep.service.Client`."""
        self._check_open()
        client = RayClient(self._about, self._desk, rank_of(self.job, rank, place))
        self._clients.append(client)
        return client

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """From which a service goes on, on the same mesh or on another: JSON-able.

        Args:
            step: that comes next; None is the one that comes next in all clients.

        Raises:
            ConfigurationError: clients have taken different numbers of steps, or the state before
                the step is not kept.
        """
        self._check_open()
        if step is None:
            told = [client["step"] for client in self.status()["clients"]]
            told += [c.step for c in self._clients if c.step > self._about.step]
            reached = {s for s in told if s > self._about.step} or {self._about.step}
            if len(reached) > 1:
                raise ConfigurationError(
                    f"clients have come to different steps, from {min(reached)} to {max(reached)}; "
                    "save where all have taken the same, or name the step"
                )
            (step,) = reached
        state: dict[str, Any] = call(self._about.planner, "state_dict", step)
        return state

    def close(self) -> None:
        """Ends all actors, and Ray where it was started here. Harmless the second time."""
        if self._closed:
            return
        self._closed = True
        for client in self._clients:
            client.close()
        ray = import_ray()
        if ray.is_initialized():
            with suppress(Exception):  # whoever died is ended below all the same
                self._end_roles(ray)
            for actor in [*(handle.actor for handle in self._actors), self._desk]:
                if actor is not None:
                    with suppress(Exception):
                        ray.kill(actor)
            if self._began:
                ray.shutdown()

    def __enter__(self) -> RayService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end_roles(self, ray: Any) -> None:
        if self._desk is not None:
            ray.wait([self._desk.close.remote()], timeout=_CLOSING)
        ending = [
            h.actor.handle.remote(packed([("close", ())]))
            for h in self._actors
            if "Loader" in h.name
        ]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=_CLOSING)

    # Start

    def _refuse_twin(self, name: str) -> None:
        try:
            about, _ = find(name)
        except ConfigurationError:
            return
        raise ConfigurationError(
            f"a job named {name!r} runs on this cluster already, since epoch {about.epoch}; give "
            "this one another name, or end that one"
        )

    def _begin(
        self,
        job: Job,
        name: str,
        space: str,
        layout: SourceLayout,
        groups: list[list[int]],
        state: Mapping[str, Any] | None,
        plan_log: str | os.PathLike[str] | None,
        cpus: float | None,
        patience: float,
    ) -> None:
        ray = import_ray()
        epoch = time.time_ns()
        until = time.monotonic() + patience
        count = len(layout.shares) + len(groups) + 1
        kind = role_actor(ray, cpus_of(ray, cpus, count))

        def actor(role: str, what: str, threads: int = 1) -> RayHandle:
            made = kind.options(
                name=f"{epoch}-{role}", namespace=space, max_concurrency=threads
            ).remote()
            handle = RayHandle(made, what)
            self._actors.append(handle)
            return handle

        paths = [os.path.abspath(each) for each in sys.path]
        sent = (ray.put(ray.cloudpickle.dumps(job)), paths)
        loaders = [actor(f"loader-{n}", f"Source Loader {n}") for n in range(len(layout.shares))]
        planner = actor("planner", "the Planner")
        builders = [
            actor(f"constructor-{n}", f"Data Constructor {n}", threads_of(job, len(group)))
            for n, group in enumerate(groups)
        ]
        desk = desk_actor(ray, len(job.tree))
        self._desk = desk.options(name=f"{epoch}-desk", namespace=space).remote()
        loading = [h.actor.load.remote("evenstep.service.data_constructor") for h in builders]
        self._ready(
            [
                (h, actors.loader, (ray.cloudpickle.dumps(job.for_loader(share, n)), paths))
                for n, (h, share) in enumerate(zip(loaders, layout.shares))
            ],
            until,
            patience,
        )
        log = None if plan_log is None else os.path.abspath(plan_log)
        self._ready(
            [(planner, actors.planner, (*sent, layout, loaders, state, log))], until, patience
        )
        ray.wait(loading, num_returns=len(loading), timeout=max(until - time.monotonic(), 0.1))
        self._ready(
            [
                (h, actors.constructor, (*sent, layout, loaders, planner, groups[n]))
                for n, h in enumerate(builders)
            ],
            until,
            patience,
        )
        ranks = [tuple(sorted(job.tree.ranks[:, list(g)].ravel().tolist())) for g in groups]
        first = 0 if state is None else int(state["step"])
        self._about = JobInfo(
            name=name,
            epoch=epoch,
            fingerprint=job.fingerprint,
            tree=job.tree,
            prefetch=job.prefetch,
            step=first,
            planner=planner,
            loaders=tuple(loaders),
            constructors=tuple(zip(ranks, builders)),
        )
        ray.get(self._desk.open.remote(self._about))

    def _ready(
        self,
        wanted: list[tuple[RayHandle, Callable[..., Any], tuple[Any, ...]]],
        until: float,
        patience: float,
    ) -> None:
        """Has roles made, and waits for all of them."""
        ray = import_ray()
        begun = [h.actor.begin.remote(build, *arguments) for h, build, arguments in wanted]
        left = max(until - time.monotonic(), 0.1)
        _, late = ray.wait(begun, num_returns=len(begun), timeout=left)
        for (handle, _, _), reference in zip(wanted, begun):
            if reference in late:
                free = ray.available_resources().get("CPU", 0.0)
                raise ConfigurationError(
                    f"{handle.name} was not ready within {patience:g} seconds, and the cluster has "
                    f"{free:g} CPUs free; raise patience=, or lower cpus= or loaders="
                )
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayActorError as error:
                raise died(handle.name, error) from error
            if answer.error is not None:
                raise answer.error
            process, host = answer.value
            handle.name += f" (process {process} on {host})"
