"""`RayService`: a job whose roles are actors, from its start to its end.

The process that starts it owns the actors: they end with it, however it ends.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_one_of
from evenstep.service.backend_common import Loaders, groups_of, layout_of
from evenstep.service.job import Job
from evenstep.service.ray.actor_loader import ActorLoader
from evenstep.service.ray.discovery import connect, find, namespace_of
from evenstep.service.ray.launcher import Launcher, LaunchOptions
from evenstep.service.ray.placement import ActorPlacement
from evenstep.service.ray.road import import_ray
from evenstep.service.remote.changing_job import ChangingJob
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import Constructors
from evenstep.service.remote.roads import SocketRoad
from evenstep.service.remote.role_limits import RoleLimits
from evenstep.service.remote.standing import Standing
from evenstep.service.sizing.loader_scaling import LoaderScaling
from evenstep.service.source_loader import LoaderJob
from evenstep.service.store.runs import new_run, own_run
from evenstep.service.transport.endpoint_file import path_of, remove_endpoint, write_endpoint
from evenstep.strategy.loaders import STRIPE

Transport = Literal["sockets", "ray"]


class RayService(ChangingJob):
    """A running job. Made by `evenstep.service.start`; a context manager."""

    def __init__(
        self,
        job: Job,
        *,
        address: str | None = None,
        name: str = "job",
        loaders: Loaders = 1,
        standbys: int = 0,
        scaling: LoaderScaling | None = None,
        events: str | os.PathLike[str] | None = None,
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
        step_log: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            address: of a cluster; "local" starts one on this machine, which ends with the service.
                None joins that of this process or of the environment variable RAY_ADDRESS, and
                starts one if there is none.
            name: by which trainers find the job.
            loaders, constructors, state, stripe: see `LocalService`.
            standbys: actors that could play any loader at once.
            scaling: instead of `loaders`, says how many there are to be, again and again.
            events: a file, on the registry's machine, for deaths, restarts, promotions and scaling,
                a line of JSON each.
            plan_log: a file on the planner's machine.
            store: a folder that all machines see, or a URL. None is a folder of the service's own
                on this machine, which ends with it.
            cpus: CPUs that Ray reserves for each actor, such as 0.5; None is 1, or an equal share
                of the free ones if they are fewer.
            placement: see `evenstep.service.start`.
            patience: seconds within which actors must have opened their sources.
            hung_after: seconds after which a role that says nothing is killed, for Ray to make it
                again; None waits for it.
            memory_limit: bytes of a loader with its workers, over which it is made again, too.
            transport: of messages between roles; "sockets", or "ray", Ray's own calls, which are
                slower and need no ports besides Ray's.
            ray_options: more for ``ray.init``, such as ``num_cpus`` or ``runtime_env``.
            step_log: see `evenstep.service.start`.

        Raises:
            ConfigurationError: no cluster, too few CPUs, a running job of the same name, or what
                `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: Ray is not installed.
        """
        check_one_of(("sockets", "ray"), transport=transport)
        check_at_least(0, standbys=standbys)
        namespace_of(name)  # refuses bad names
        layout = layout_of(job, loaders if scaling is None else scaling.layout, stripe)
        limits = RoleLimits(
            hung_after=hung_after,
            memory_limit=memory_limit,
            workers=max(layout.workers, default=job.workers),
        )
        groups = groups_of(job, constructors)
        placed = ActorPlacement(
            placement or {},
            loaders=len(layout.shares),
            constructors=len(groups),
            standbys=standbys,
        )
        self._own = own_run() if store is None else None
        options = LaunchOptions(
            name=name,
            layout=layout,
            standbys=standbys,
            events=None if events is None else os.path.abspath(events),
            limits=limits,
            groups=groups,
            state=state,
            plan_log=plan_log,
            store=self._own or new_run(store),
            cpus=cpus,
            placement=placed,
            patience=patience,
            sockets=transport == "sockets",
            step_log=None if step_log is None else os.path.abspath(step_log),
        )
        super().__init__(job, constructors=constructors, stripe=stripe)
        self._file: Path | None = None
        self._launcher = Launcher(job, options)
        self._connected = connect(address, ray_options)
        try:
            _refuse_running(name)
            standing, self._loaders = self._launcher.launch()
            self._standing, self._info = standing, standing.info
            self._started = len(self._loaders)
            road = self._info.registry.road
            if isinstance(road, SocketRoad):
                # Of this run: a job of the same name may run on another cluster, or without Ray.
                self._file = path_of(f"{name}-{self._info.run_id}")
                self._endpoint = road.endpoint
                write_endpoint(self._file, self._endpoint)
            if scaling is not None:
                self._begin_scaling(scaling)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """The cluster's address, for `evenstep.service.Client`."""
        return str(import_ray().get_runtime_context().gcs_address)

    @property
    def file(self) -> Path | None:
        """Where the address for trainers on hosts without Ray is: copy it there, readable by its
        owner alone. None with ``transport="ray"``."""
        return self._file

    def close(self) -> None:
        """Ends all actors, and Ray if this service started it. Idempotent."""
        if self._closed:
            return
        self._end_scaling()
        self._closed = True
        self._close_clients()
        if self._file is not None:
            remove_endpoint(self._file, self._endpoint)
        if import_ray().is_initialized():
            self._launcher.end()
            if self._connected:
                import_ray().shutdown()
        if self._own is not None:
            shutil.rmtree(self._own.url, ignore_errors=True)

    def _new_loader(self, part: LoaderJob) -> ActorLoader:
        return self._launcher.begin_loader(part)

    def _new_constructors(self, job: Job, mesh: int, groups: list[list[int]]) -> Constructors:
        return self._launcher.begin_constructors(job, mesh, groups)

    def _end_constructors(self, handles: Sequence[RemoteHandle]) -> None:
        self._launcher.end_roles(handles)

    def _tell(self, standing: Standing) -> None:
        self._launcher.tell(standing)


def _refuse_running(name: str) -> None:
    try:
        info = find(name)
    except ConfigurationError:
        return
    started = time.strftime("%H:%M:%S", time.localtime(info.run_id / 1e9))
    raise ConfigurationError(
        f"a job named {name!r} is already running (started {started}); choose another name=, or "
        "end that job"
    )
