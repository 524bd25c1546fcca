"""`RemoteClient`: the client of a service whose roles run elsewhere."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError, MeshChangedError
from evenstep.service.client.rank_client import RankClient
from evenstep.service.client.service_step import ServiceStep, mesh_changed
from evenstep.service.messages import Method, P, call, message
from evenstep.service.registry.metrics import TakenStep
from evenstep.service.registry.pace import Room
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.channels import (
    Answer,
    Location,
    PendingAnswer,
    RoleGoneError,
    RolePlace,
    cause_of_death,
)
from evenstep.service.remote.handles import warn_of_wait
from evenstep.service.remote.job_state import JobInfo

logger = logging.getLogger("evenstep")


class ServiceMonitor:
    """Keeps a question pending at the registry, in a thread. The registry answers it when a role
    has died for good, the service is closed, or the mesh has changed. If the registry dies, its
    successor is asked."""

    def __init__(self, registry: RolePlace, mesh: int) -> None:
        """
        Args:
            mesh: of the client; see `JobInfo`.
        """
        self._registry, self._mesh = registry, mesh
        self.ends_at: int | None = None
        """The step at which the client's mesh has ended, if it is known to have."""
        self.error: Exception | None = None
        """What has happened, if anything has."""
        self.comes: tuple[int, int, int] | None = None
        """For a registry that has restarted: see `JobRegistry.failed`."""
        threading.Thread(
            target=self._run, args=(registry.location(),), name="evenstep-monitor", daemon=True
        ).start()

    def _run(self, location: Location) -> None:
        try:
            while self.error is None:
                asked = location.channel.send(
                    [message(JobRegistry.failed, self._mesh, self.ends_at, self.comes)]
                )
                try:
                    self.ends_at = asked.answer().only()
                except RoleGoneError:
                    location = self._registry.successor(location)
        except RoleGoneError as error:
            self.error = cause_of_death(self._registry.role, error)
        except Exception as error:
            self.error = error


_REPORT_INTERVAL = 1.0  # seconds between reports of steps taken
_REPORT_SECONDS = 2.0  # for the registry to hear of them at the end
_PAUSES = 0.05, 1.0
"""Seconds between questions of a rank that is held: at first, and at most."""
_SAID_AFTER = 0.1  # seconds of such a pause after which it is logged
_LOOK = 0.5  # seconds between looks at the monitor
_UNANSWERED = 5.0  # seconds after which a registry that has died or says nothing holds nobody


class RemoteClient(RankClient):
    """A `RankClient` that watches the service: when a role dies and cannot be restarted, the next
    step raises an error that names it, even if steps were prefetched."""

    def __init__(
        self,
        job: JobInfo,
        rank: int,
        *,
        step: int | None = None,
        step_log: str | os.PathLike[str] | None = None,
    ) -> None:
        """
        Args:
            step: the first step; None is the service's first.
            step_log: see `log_steps`; None is the job's, on rank 0.
        """
        self._stages: Mapping[str, float] = {}
        constructor = job.constructor(rank)  # refuses ranks that do not exist
        self._monitor = ServiceMonitor(job.registry.place, job.mesh)
        watched: dict[str, Any] = {
            "monitor": self._monitor,
            "on_wait": warn_of_wait(f"rank {rank}"),
            "warn_after": job.warn_after,
        }
        self._registry = job.registry.using(**watched)
        self._mesh, self._begin = job.mesh, job.step
        self._taken: list[TakenStep] = []
        self._taken_lock = threading.Lock()
        self._told: list[PendingAnswer] = []
        """Answers to what the registry was told, which have not come."""
        self._asked: PendingAnswer | None = None
        """How far it may go."""
        self._early = max(job.plans_kept // 2, 1)
        """Steps before `_limit` at which it asks again."""
        self._reported_at = -math.inf
        self._places = [each.place for each in (job.registry, job.planner, constructor)]
        self._number = call(self._registry, JobRegistry.register_client, rank, secrets.token_hex(8))
        super().__init__(
            job.tree,
            rank,
            constructor.using(**watched, on_answer=self._take_answer),
            job.planner.using(**watched),
            prefetch=job.prefetch,
            step=job.step if step is None else step,
        )
        self._limit = -math.inf
        if step_log is None and rank == 0:
            step_log = job.step_log
        if step_log is not None:
            self.log_steps(step_log)

    def __next__(self) -> tuple[list[Any], ServiceStep]:
        self._check_mesh()
        if not (self._ended or self._closed):
            self._await_room()
        try:
            micro_batches, step = super().__next__()
        except StopIteration:
            self.report_steps()
            self._tell(JobRegistry.record_end, self.rank)
            self._await_told()
            raise
        except EvenstepError as error:
            if not (self._closed or isinstance(error, MeshChangedError)):
                self._tell_failure(error)
            raise
        imbalances = step.imbalance, step.imbalance_before
        record = TakenStep(step.step, step.wait_seconds, self._stages, *imbalances, step.tokens)
        with self._taken_lock:
            self._taken.append(record)
            is_first = len(self._taken) == 1
        left = self._reported_at + _REPORT_INTERVAL - time.monotonic()
        if left <= 0:
            self.report_steps()
        elif is_first:  # in a thread: the next step may be long in coming
            timer = threading.Timer(left, self.report_steps)
            timer.daemon = True
            timer.start()
        return micro_batches, step

    def report_steps(self) -> None:
        """Tells the registry of the steps taken since the last report, which otherwise happens once
        a second."""
        with self._taken_lock:
            taken, self._taken = self._taken, []
            self._reported_at = time.monotonic()
            if taken:  # sent before another thread tells of what came later
                self._tell(JobRegistry.record_steps, self.rank, self._number, taken)

    def common_state(self) -> Mapping[str, Any]:
        if self._last is None and not self.fetches:
            raise ConfigurationError(
                f"rank {self.rank} takes no steps, and has nothing to save; call common_state() "
                "where client.fetches is True"
            )
        self.report_steps()
        about = self.rank, self.step, self._number, self._mesh, self.step == self._begin
        return call(self._registry, JobRegistry.common_state, *about)

    def close(self) -> None:
        if not self._closed:
            self.report_steps()
            self._tell(JobRegistry.record_leave, self.rank, self._number)
            self._await_told()
        super().close()
        for place in self._places:
            place.disconnect()

    def _await_room(self) -> None:
        """Waits while the plan of the step that comes next would push out one that another rank
        needs; see `Pace`. Asks early, so that only a rank that is held waits."""
        self._monitor.comes = self.rank, self._number, self._next
        pause, longest = _PAUSES
        told, give_up = False, time.monotonic() + _UNANSWERED
        while self._next + self._early >= self._limit:
            held = self._next >= self._limit
            if self._asked is None:
                location = self._registry.place.known
                assert location is not None  # it has given this client its number
                about = self.rank, self._number, self._mesh, self._next
                self._asked = location.channel.send([message(JobRegistry.room, *about)])
            room: Room | None = None
            if self._asked.wait(_LOOK if held else 0.0):
                asked, self._asked = self._asked, None
                with suppress(RoleGoneError):  # the registry has died
                    room = asked.answer().only()
            if room is not None:
                self._limit, give_up = room.limit, time.monotonic() + _UNANSWERED
                held = self._next >= room.limit
            if not held:
                return
            self._check_mesh()
            if self._monitor.error is not None:
                raise self._monitor.error
            if room is not None and pause > _SAID_AFTER and not told:
                logger.warning("rank %d waits: %s", self.rank, room.why(self._next))
                told = True
            if time.monotonic() >= give_up:
                self._limit = self._next + self._early
            elif self._asked is None:
                time.sleep(pause)
                pause = min(2 * pause, longest)

    def _tell(self, method: Method[P, Any], *args: P.args, **named: P.kwargs) -> None:
        location = self._registry.place.known  # a registry that has died needs no report
        if location is not None:
            # Answers are kept: if one were dropped, its message might not be sent.
            told = location.channel.send([message(method, *args, **named)])
            self._told = [*(each for each in self._told if not each.wait(0.0)), told]

    def _await_told(self) -> None:
        """Waits until all reports have arrived, before this process may end."""
        end = time.monotonic() + _REPORT_SECONDS
        for each in self._told:
            each.wait(max(end - time.monotonic(), 0.0))

    def _tell_failure(self, error: EvenstepError) -> None:
        """Tells the registry, or its successor: ranks that save would wait for this one. A registry
        that is stopped hears of it later."""
        location = self._registry.place.location()
        failed = message(JobRegistry.record_failure, self.rank, self._number, error)
        with suppress(RoleGoneError, EvenstepError):  # the service has ended
            while (sent := location.channel.send([failed])).wait(_REPORT_SECONDS):
                try:
                    sent.answer()
                    return
                except RoleGoneError:
                    location = self._registry.place.successor(location)

    def _take_answer(self, answer: Answer) -> None:
        self._stages = answer.stages
        self._check_mesh()  # it may be of a step that was requested before the mesh has changed

    def _check_mesh(self) -> None:
        """
        Raises:
            MeshChangedError: the mesh has ended before the step that comes next.
        """
        if self._monitor.ends_at is not None and self.step >= self._monitor.ends_at:
            raise mesh_changed(self.rank, self.step, self._monitor.ends_at)
