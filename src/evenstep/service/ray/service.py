"""`RayService`: a job whose roles are actors, from its start to its end.

The process that starts it owns the actors: they end with it, however it ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.plan.argument_checks import check_at_least
from evenstep.service.backend_common import common_step, groups_of, rank_of
from evenstep.service.handles import call
from evenstep.service.job import Job
from evenstep.service.ray.client import RayClient
from evenstep.service.ray.discovery import connect, find
from evenstep.service.ray.handles import RayHandle, cause_of_death, import_ray
from evenstep.service.ray.launcher import Launcher, LaunchOptions
from evenstep.service.ray.registry import JobInfo, namespace_of
from evenstep.service.ray.role_inquiry import ANSWER_LIMIT
from evenstep.service.ray.wait_warnings import WaitWarnings
from evenstep.service.source_layout import STRIPE, SourceLayout
from evenstep.strategy import LoadingPlan

_STATUS_LIMIT = 5 * ANSWER_LIMIT  # seconds


def attach(address: str | None = "auto", name: str = "job") -> AttachedService:
    """A job that another process runs, to look at.

    Raises:
        ConfigurationError: no cluster, or no such job.
    """
    return AttachedService(address, name)


class _RunningJob:
    """What can be asked about a running job, by its owner and by others."""

    _info: JobInfo
    _registry: Any
    _closed = False

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def address(self) -> str:
        """The cluster's address, for `evenstep.service.Client`."""
        return str(import_ray().get_runtime_context().gcs_address)

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step, made now if need be; None if the mixture has ended before it."""
        self._check_open()
        plan: LoadingPlan | None = call(self._planner, "plan", step)
        return plan

    def status(self) -> dict[str, Any]:
        """JSON-able: the state and counters of each role, how long clients waited, see
        `evenstep.service.metrics`, and who waits for whom now.

        Raises:
            EvenstepError: the registry does not answer.
            LoaderDiedError: it died.
        """
        self._check_open()
        ray = import_ray()
        try:
            asked = self._registry.status.remote()
            status: dict[str, Any] = ray.get(asked, timeout=_STATUS_LIMIT)
        except ray.exceptions.GetTimeoutError as error:
            raise EvenstepError(
                f"{self._info.registry.name} of job {self.name!r} has not answered for "
                f"{_STATUS_LIMIT:.0f} s: it is stopped, hangs or is overloaded"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise cause_of_death("the registry", error) from error
        return status

    @property
    def _planner(self) -> RayHandle:
        info = self._info
        warnings = WaitWarnings(info.registry, f"process {os.getpid()}")
        return info.planner.using(on_wait=warnings, warn_after=info.warn_after)

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the service is closed; start the job again")


class AttachedService(_RunningJob):
    """See `attach`. A context manager; the job keeps running when it is left."""

    def __init__(self, address: str | None, name: str) -> None:
        self._connected = connect(address or "auto")
        try:
            self._info, self._registry = find(name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leaves the cluster. Idempotent."""
        self._closed = True
        if self._connected:
            self._connected = False
            import_ray().shutdown()

    def __enter__(self) -> AttachedService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class RayService(_RunningJob):
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
                None joins that of this process or of the environment variable RAY_ADDRESS, and
                starts one if there is none.
            name: by which trainers find the job.
            loaders, constructors, state, stripe: see `LocalService`.
            plan_log: a file on the planner's machine.
            cpus: CPUs that Ray reserves for each actor, such as 0.5; None is 1, or an equal share
                of the free ones if they are fewer.
            patience: seconds within which actors must have opened their sources.
            ray_options: more for ``ray.init``, such as ``num_cpus`` or ``runtime_env``.

        Raises:
            ConfigurationError: no cluster, too few CPUs, a running job of the same name, or what
                `LocalService` raises.
            MismatchError: the state is of another job.
            ImportError: Ray is not installed.
        """
        check_at_least(1, loaders=loaders)
        namespace_of(name)  # refuses bad names
        options = LaunchOptions(
            name=name,
            layout=SourceLayout.of(job.names, loaders, stripe=stripe),
            groups=groups_of(job, constructors),
            state=state,
            plan_log=plan_log,
            cpus=cpus,
            patience=patience,
        )
        self.job = job
        self._clients: list[RayClient] = []
        self._launcher = Launcher(job, options)
        self._connected = connect(address, ray_options)
        try:
            _refuse_running(name)
            self._info = self._launcher.launch()
            self._registry = self._launcher.registry
        except BaseException:
            self.close()
            raise

    def client(self, rank: int | None = None, **place: int) -> RayClient:
        """The client of a rank, given by its number or its coordinates, in this process; see
        `LocalService.client`. Trainers in other processes make an `evenstep.service.Client`."""
        self._check_open()
        client = RayClient(self._info, self._registry, rank_of(self.job, rank, place))
        self._clients.append(client)
        return client

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """The state to resume from; see `LocalService.state_dict`.

        Raises:
            ConfigurationError: clients have taken different numbers of steps, or the state before
                the step is not kept.
        """
        self._check_open()
        if step is None:
            reached = {client["rank"]: client["step"] for client in self.status()["clients"]}
            reached.update({client.rank: client.step for client in self._clients})
            step = common_step(self._info.step, reached)
        state: dict[str, Any] = call(self._planner, "state_dict", step)
        return state

    def close(self) -> None:
        """Ends all actors, and Ray if this service started it. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for client in self._clients:
            client.close()
        if import_ray().is_initialized():
            self._launcher.end()
            if self._connected:
                import_ray().shutdown()

    def __enter__(self) -> RayService:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_running(name: str) -> None:
    try:
        info, _ = find(name)
    except ConfigurationError:
        return
    started = time.strftime("%H:%M:%S", time.localtime(info.run_id / 1e9))
    raise ConfigurationError(
        f"a job named {name!r} is already running (started {started}); choose another name=, or "
        "end that job"
    )
