"""`start`: runs a job as a service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_one_of
from evenstep.service.job import Job

if TYPE_CHECKING:
    from evenstep.service.local import LocalService
    from evenstep.service.processes.service import ProcessService
    from evenstep.service.ray import RayService

BACKENDS = ("ray", "processes", "local")


@overload
def start(job: Job, *, backend: Literal["ray"] = "ray", **options: Any) -> RayService: ...
@overload
def start(job: Job, *, backend: Literal["local"], **options: Any) -> LocalService: ...
@overload
def start(job: Job, *, backend: Literal["processes"], **options: Any) -> ProcessService: ...
@overload
def start(
    job: Job, *, backend: str, **options: Any
) -> RayService | ProcessService | LocalService: ...
def start(
    job: Job, *, backend: str = "ray", **options: Any
) -> RayService | ProcessService | LocalService:
    """Starts a job. Use it in a ``with`` statement.

    Args:
        backend: "ray" runs each role in an actor, on this machine or on the cluster at
            ``address=``; see `evenstep.service.ray.RayService`. "processes" needs no Ray: loaders
            are processes of this machine, and all other roles threads of this one; see
            `ProcessService`. "local" runs all roles in this process, for tests and to try out a
            job; see `LocalService`. All draw and plan the same.
        options: of the backend, such as ``loaders=4``.

    Raises:
        ConfigurationError: an unknown backend, or a source that cannot be opened.
        ImportError: Ray, or pyzmq for "processes", is not installed.
    """
    if not isinstance(job, Job):
        raise ConfigurationError(
            f"start({type(job).__name__}) must be given an evenstep.service.Job"
        )
    check_one_of(BACKENDS, backend=backend)
    if backend == "local":
        from evenstep.service.local import LocalService

        return LocalService(job, **options)
    if backend == "processes":
        from evenstep.service.processes.service import ProcessService

        return ProcessService(job, **options)
    from evenstep.service.ray.service import RayService

    return RayService(job, **options)
