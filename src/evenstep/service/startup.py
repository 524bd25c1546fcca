"""`start`: runs a job as a service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_one_of
from evenstep.service.job import Job
from evenstep.strategy.loaders import STRIPE

if TYPE_CHECKING:
    from evenstep.service.backend_common import Loaders
    from evenstep.service.local import LocalService
    from evenstep.service.processes.service import ProcessService
    from evenstep.service.ray.service import RayService, Transport
    from evenstep.service.sizing.loader_scaling import LoaderScaling

BACKENDS = ("ray", "processes", "local")


@overload
def start(
    job: Job,
    *,
    backend: Literal["ray"] = "ray",
    address: str | None = None,
    name: str = "job",
    loaders: Loaders = 1,
    standbys: int = 0,
    scaling: LoaderScaling | None = None,
    constructors: int | None = None,
    state: Mapping[str, Any] | None = None,
    plan_log: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    stripe: int = STRIPE,
    cpus: float | None = None,
    placement: Mapping[str, Any] | None = None,
    patience: float = 120.0,
    hung_after: float | None = None,
    memory_limit: int | None = None,
    transport: Transport = "sockets",
    ray_options: Mapping[str, Any] | None = None,
    events: str | os.PathLike[str] | None = None,
    step_log: str | os.PathLike[str] | None = None,
) -> RayService: ...
@overload
def start(
    job: Job,
    *,
    backend: Literal["local"],
    loaders: Loaders = 1,
    constructors: int | None = None,
    state: Mapping[str, Any] | None = None,
    plan_log: str | os.PathLike[str] | None = None,
    store: str | os.PathLike[str] | None = None,
    stripe: int = STRIPE,
) -> LocalService: ...
@overload
def start(
    job: Job,
    *,
    backend: Literal["processes"],
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
) -> ProcessService: ...
@overload
def start(
    job: Job, *, backend: str, **options: Any
) -> RayService | ProcessService | LocalService: ...
def start(
    job: Job, *, backend: str = "ray", **options: Any
) -> RayService | ProcessService | LocalService:
    """Starts a job. Use it in a ``with`` statement.

    Args:
        backend: "ray" runs each role in an actor, on this machine or on the cluster at `address`.
            "processes" needs no Ray: loaders are processes of this machine, and all other roles
            threads of this one. "local" runs all roles in this thread, for tests and to try out a
            job. All draw and plan the same.
        loaders: number of Source Loaders, which divide the sources among them; 1 by default. If
            there are more loaders than sources, several share a source. Or a layout of
            `plan_loaders`, which says which has what, and with how many workers; "auto" measures
            and plans now, as fast as the cores of this machine allow.
        standbys: processes that could play any loader at once, of which one follows a loader that
            dies; 0 by default.
        scaling: instead of `loaders`: a `LoaderScaling`, which says how many there are to be while
            weights move.
        constructors: Data Constructors, which divide the data-parallel groups among them; by
            default one for each group.
        state: of `state_dict`, to resume from.
        plan_log: a file, on the planner's machine, that plans are written to; see `read_log`.
        store: a folder, or a URL that fsspec knows, in which the run keeps its states; see
            `stored_state`.
        stripe: consecutive positions that one loader owns, of a source that several share.
        name: by which trainers find the job; "job" by default.
        address: of a Ray cluster; "local" starts one on this machine, which ends with the service.
            By default that of this process or of the environment variable RAY_ADDRESS; if there is
            none, one is started.
        cpus: CPUs that Ray reserves for each actor, such as 0.5; by default 1, or an equal share of
            the free ones if they are fewer.
        placement: where Ray makes actors, and what they reserve there: for "loaders",
            "standbys", "constructors" and "planner", options of Ray's actors (``label_selector``,
            ``resources``, ``memory``, ``num_cpus``, ``scheduling_strategy``), or a list of such
            options, one for each actor.
        patience: seconds within which loaders must have opened their sources; 120 by default.
        step_log: a file to which the client of rank 0 adds a line for each step, on the machine
            where that rank trains; ``evenstep report`` and ``evenstep watch`` show it.
        hung_after: seconds after which a loader that says nothing, and on Ray any role, is killed,
            and followed by another. None, the default, waits for it: it may be stopped, or its
            machine overloaded.
        memory_limit: bytes that a loader may take with its workers, without what they map from
            files. One that takes more is killed, and followed by another, before the system kills
            it or its neighbours; looked at twice a second. None, the default, sets no limit.
        events: a file for what happens to roles (deaths, restarts, promotions, scaling), a line of
            JSON each; on Ray on the registry's machine.
        transport: of messages between roles; "sockets" by default, or "ray", Ray's own calls.
        ray_options: more for ``ray.init``, such as ``num_cpus`` or ``runtime_env``.

    "local" has neither `standbys` nor `scaling`, nor what comes after `stripe`; "processes" has
    these, `name`, `patience`, `hung_after`, `memory_limit`, `events` and `step_log`; "ray" has all.

    Raises:
        ConfigurationError: an unknown backend, or a source that cannot be opened.
        MismatchError: the state is of another job or of other data.
        ImportError: Ray is not installed.
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
