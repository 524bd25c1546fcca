"""`start`: runs a job as a service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_one_of
from evenstep.service.job.job import Job
from evenstep.service.start_options import LogOptions, RayOptions, ServiceFaults

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from evenstep.service.backends.local import LocalService
    from evenstep.service.backends.processes.process_service import ProcessService
    from evenstep.service.backends.ray.ray_service import RayService
    from evenstep.service.client.joining import AttachedService
    from evenstep.service.job.roles import Loaders

    class _Options(TypedDict, total=False):
        name: str
        loaders: Loaders
        constructors: int | None
        state: Mapping[str, Any] | None
        store: str | os.PathLike[str] | None
        faults: ServiceFaults
        logs: LogOptions


BACKENDS = ("ray", "processes", "local")


@overload
def start(
    job: Job, *, backend: Literal["ray"] = "ray", ray: RayOptions = ..., **options: Unpack[_Options]
) -> RayService: ...
@overload
def start(
    job: Job, *, backend: Literal["processes"], **options: Unpack[_Options]
) -> ProcessService: ...
@overload
def start(job: Job, *, backend: Literal["local"], **options: Unpack[_Options]) -> LocalService: ...
@overload
def start(
    job: Job, *, backend: str, **options: Any
) -> RayService | AttachedService | ProcessService | LocalService: ...
def start(
    job: Job, *, backend: str = "ray", **options: Any
) -> RayService | AttachedService | ProcessService | LocalService:
    """Starts a job. Use it in a ``with`` statement.

    Args:
        backend: "ray" runs each role in an actor, on this machine or on a cluster. "processes"
            needs no Ray: loaders are processes of this machine, and all other roles threads of this
            one. "local" runs all roles in this thread, for tests and to try out a job. All draw and
            plan the same.
        name: by which trainers find the job; not for "local".
        loaders: number of Source Loaders, which divide the sources among them by weight. Several
            may share a source. Or a layout of `plan_loaders`, which says
            which has what, and with how many workers. "auto" measures and plans now, as fast as the
            cores of this machine allow. A `LoaderScaling` changes their number as weights move; not
            for "local".
        constructors: Data Constructors, which divide the data-parallel groups among them; None is
            one for each group.
        state: of `state_dict`, to resume from.
        store: a folder, or a URL that fsspec knows, in which the run keeps its states; see
            `stored_state`. On Ray all machines must see it; without it, the service keeps states in
            a temporary folder on this machine, for a planner that restarts.
        faults: what happens when processes die, hang or take too much memory; not for "local".
        logs: files that are written; only `LogOptions.seen` for "local".
        ray: how the service runs on Ray; only for "ray".

    Raises:
        ConfigurationError: an unknown backend, a running job of the same name, or a source that
            cannot be opened.
        MismatchError: the state is of another job or of other data.
        ImportError: Ray or pyzmq is not installed.
    """
    if not isinstance(job, Job):
        raise ConfigurationError(
            f"start({type(job).__name__}) must be given an evenstep.service.Job"
        )
    check_one_of(BACKENDS, backend=backend)
    if backend == "local":
        from evenstep.service.backends.local import LocalService

        return LocalService(job, **options)
    if backend == "processes":
        from evenstep.service.backends.processes.process_service import ProcessService

        return ProcessService(job, **options)
    ray = options.get("ray")
    if isinstance(ray, RayOptions) and ray.detached is not None:
        from evenstep.service.backends.ray.detached import start_detached

        return start_detached(job, **options)
    from evenstep.service.backends.ray.ray_service import RayService

    return RayService(job, **options)
