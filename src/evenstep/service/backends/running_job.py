"""What can be asked about a running job, by the process that started it and by others."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.messages import call
from evenstep.service.planner.planner import Planner
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.registry.role_watch import ANSWER_LIMIT
from evenstep.service.remote.handles import RemoteHandle, warn_of_wait
from evenstep.service.remote.job_state import JobInfo
from evenstep.strategy import LoadingPlan

if TYPE_CHECKING:
    from typing_extensions import Self

_STATUS_LIMIT = 5 * ANSWER_LIMIT  # seconds


class RunningJob:
    """A context manager."""

    _info: JobInfo
    _closed = False

    @property
    def name(self) -> str:
        return self._info.name

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step, made now if need be; None if the mixture has ended before it."""
        self._check_open()
        return call(self._planner, Planner.plan, step)

    def status(self) -> dict[str, Any]:
        """JSON-able: the state and counters of each role, and how long clients waited: see
        `evenstep.service.registry.metrics`.

        Raises:
            EvenstepError: the registry does not answer.
            LoaderDiedError: it died.
        """
        self._check_open()
        registry = self._info.registry.using(on_wait=self._give_up, warn_after=_STATUS_LIMIT)
        return call(registry, JobRegistry.status)

    def _give_up(self, registry: RemoteHandle, *_: object) -> None:
        raise EvenstepError(
            f"{registry.name} of job {self.name!r} has not answered for {_STATUS_LIMIT:.0f} s: it "
            "is stopped, hangs or is overloaded"
        )

    def close(self) -> None:
        """Idempotent."""
        self._closed = True

    @property
    def _planner(self) -> RemoteHandle:
        on_wait = warn_of_wait(f"process {os.getpid()}")
        return self._info.planner.using(on_wait=on_wait, warn_after=self._info.warn_after)

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError("the service is closed; start the job again")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
