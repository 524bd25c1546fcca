"""Joins a service that another process runs: `Client` as a trainer's rank, `attach` to look at
it and to change it."""

from __future__ import annotations

import os
import secrets
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.backends.running_job import RunningJob
from evenstep.service.backends.steering import who
from evenstep.service.client.discovery import SILENT, job_in, no_job, with_locators
from evenstep.service.client.remote_client import RemoteClient
from evenstep.service.job.roles import Loaders
from evenstep.service.messages import call
from evenstep.service.registry.orders import Order
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.job_state import JobInfo
from evenstep.service.transport.endpoint import SUFFIX, path_of

_RETRY_INTERVAL = 0.2  # seconds


class Client(RemoteClient):
    """The client of a rank, in a trainer's process: ``evenstep.service.Client``."""

    def __init__(
        self,
        address: str | os.PathLike[str] | None = "auto",
        job_name: str = "job",
        rank: int | None = None,
        *,
        step: int | None = None,
        patience: float = 60.0,
        step_log: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            address: that the service prints: of its Ray cluster, or a file, with which a trainer
                joins without Ray. "auto" finds a job on this machine, whatever runs it.
            job_name: the name that the job was started with.
            rank: None is that of the environment variable RANK, as torchrun sets it.
            step: the first step; None is the service's first.
            patience: seconds to wait for the service to be started, and to answer.
            step_log: see `RankClient.log_steps`; None is that of the service, on rank 0.

        Raises:
            ConfigurationError: no service there, no such job, or no such rank.
            EvenstepError: the service is there, and says nothing.
            ImportError: Ray or pyzmq is not installed.
        """
        if rank is None:
            rank = _rank_of_environment()
        job, self._leaving = join(address, job_name, patience=patience)
        try:
            super().__init__(job, rank, step=step, step_log=step_log)
        except BaseException:
            self._leaving.close()
            raise

    def close(self) -> None:
        super().close()
        self._leaving.close()


def _rank_of_environment() -> int:
    given = os.environ.get("RANK", "")
    if not given.isdecimal() or len(given) > 9:
        raise ConfigurationError(
            f"rank is not given, and the environment variable RANK={given!r} is not a rank; give "
            "rank=, or start the trainer with torchrun"
        )
    return int(given)


def attach(address: str | os.PathLike[str] | None = "auto", name: str = "job") -> AttachedService:
    """A job that another process runs, to look at and to change.

    Args:
        address: see `evenstep.service.Client`.

    Raises:
        ConfigurationError: no such job.
    """
    return AttachedService(*join(address, name))


class AttachedService(RunningJob):
    """See `attach`. The job keeps running when it is left. What the process that started it must do
    is ordered there; `ProcessService` and `RayService` document it."""

    def __init__(self, job: JobInfo, leaving: ExitStack) -> None:
        self._info, self._leaving = job, leaving

    def use_loaders(self, loaders: Loaders) -> None:
        self._order("use_loaders", loaders=loaders)

    def remesh(self, mesh: Any, at_step: int | None = None) -> None:
        self._order("remesh", mesh=mesh, at_step=at_step)

    def pause(self) -> None:
        self._order("pause")

    def resume(self) -> None:
        self._order("resume")

    def end(self) -> None:
        """Ends the job at once: its trainers get an error. `drain` ends it at a step."""
        self._order("end")

    def _order(self, method: str, **arguments: Any) -> None:
        self._check_open()
        order = Order(secrets.token_hex(8), method, arguments, who())
        call(self._info.registry, JobRegistry.order, order)

    def close(self) -> None:
        """Leaves the job. Idempotent."""
        super().close()
        self._leaving.close()


def join(
    address: str | os.PathLike[str] | None, name: str, *, patience: float = 0.0
) -> tuple[JobInfo, ExitStack]:
    """
    Args:
        address: see `evenstep.service.Client`.
        patience: seconds to wait for the job to be started.

    Returns:
        The job that this process takes part in, and what is to be closed to leave it.

    Raises:
        ConfigurationError: there is no such job.
    """
    deadline = time.monotonic() + patience
    given = isinstance(address, os.PathLike) or str(address).endswith(SUFFIX)
    file = Path(str(address)) if given else path_of(name)
    while True:
        left = max(deadline - time.monotonic(), 1.0) if patience else SILENT
        job = job_in(file, left) if given or address in (None, "auto") else None
        if job is not None:
            return with_locators(job, file) if job.backend == "ray" else job, ExitStack()
        late = time.monotonic() > deadline
        if not given:
            from evenstep.service.backends.ray.discovery import (  # which need Ray
                connect,
                joined_cluster,
            )

            try:
                connected = connect(str(address or "auto"))
            except (ConfigurationError, ImportError) as error:
                if address not in (None, "auto"):
                    raise
                if late:
                    here = no_job(name, "this machine")
                    raise ConfigurationError(f"{here}; nor on Ray: {error}") from error
            else:
                return joined_cluster(connected, name, deadline)
        elif late:
            raise ConfigurationError(
                f"no service answers at {file}; start it first, or give the address that it prints"
            )
        time.sleep(_RETRY_INTERVAL)
