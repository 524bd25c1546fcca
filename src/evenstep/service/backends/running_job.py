"""What can be asked about a running job, by the process that started it and by others."""

from __future__ import annotations

import os
import time
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.backends.steering import Steering, first_free
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.messages import call, results
from evenstep.service.planner.changes import Change
from evenstep.service.planner.planner import Planner
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.registry.role_watch import ANSWER_LIMIT
from evenstep.service.remote.handles import RemoteHandle, warn_of_wait
from evenstep.service.remote.job_state import JobInfo
from evenstep.strategy import LoadingPlan

_STATUS_LIMIT = 5 * ANSWER_LIMIT  # seconds
_ATTEMPTS = 20  # to make a change while planners restart
_PAUSE = 0.5  # seconds between them


class RunningJob(Steering):
    """See the module docstring."""

    _info: JobInfo

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

    def _change(self, asked: Change, dry_run: bool) -> dict[str, Any]:
        self._check_open()
        for _ in range(_ATTEMPTS):
            token = call(self._planner, Planner.begin_change)
            first = self._first_free(token)
            given: dict[str, Any] = {"token": token, "first": first, "dry_run": dry_run}
            told = first is not None and call(self._planner, Planner.change, asked, **given)
            if not told:  # the planner has restarted meanwhile
                time.sleep(_PAUSE)
                continue
            if not dry_run:
                call(self._info.registry, JobRegistry.note, "changed", told)
            return told
        raise EvenstepError(
            f"nothing was changed: planners of job {self.name!r} restart one after the other, or a "
            "Data Constructor still asks an earlier one; see `evenstep service status`"
        )

    def _first_free(self, token: str) -> int | None:
        """The first step that no client has requested; None if a constructor still asks another
        planner than that with the token."""
        info = call(self._info.registry, JobRegistry.job)
        assert info is not None
        begun = results([each.send(DataConstructor.begun) for _, each in info.constructors])
        if any(asked != token for asked, _, _ in begun):
            return None
        reached = call(self._info.registry, JobRegistry.reached)
        steps = [(taken, last) for _, taken, last in begun]
        return first_free(steps, first=info.step, reached=reached, prefetch=info.prefetch)[1]

    def _give_up(self, registry: RemoteHandle, *_: object) -> None:
        raise EvenstepError(
            f"{registry.name} of job {self.name!r} has not answered for {_STATUS_LIMIT:.0f} s: it "
            "is stopped, hangs or is overloaded"
        )

    @property
    def _planner(self) -> RemoteHandle:
        on_wait = warn_of_wait(f"process {os.getpid()}")
        return self._info.planner.using(on_wait=on_wait, warn_after=self._info.warn_after)
