"""`StoredPlanner`: a planner that restarts from a store and continues with the same plans.

Before it died, it wrote the state of some step and the reports since, each with the step that was
planned next. The restarted planner plans the steps in between again. If weights may follow reports,
each step is written down before its plan is handed out, so that no later report counts for it. So a
plan is the same whether the planner died before it, after it, or not at all.

`StateWriter` writes its states to the store in a thread, so that no step waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, SupersededError
from evenstep.mixture.sample_table import Metadata
from evenstep.mixture.schedules import as_schedule
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.messages import Handle
from evenstep.service.planner.changes import Change
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.planner_state import LoggedPlan, PlannerState
from evenstep.service.planner.seen_writer import STEPS
from evenstep.service.planner.store.run_store import RunPlace, RunStore
from evenstep.service.planner.trainer_reports import merged
from evenstep.strategy import LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

_INTERVAL = 0.25  # seconds from one state to the next
_LOGGER = logging.getLogger("evenstep")


class StateWriter:
    """If states arrive faster than they are written, only the newest is written. A state that
    cannot be written is logged and skipped."""

    error: str | None = None
    """Why the last state could not be written; None if it was."""

    def __init__(
        self, store: RunStore, written_out: Callable[[PlannerState], Mapping[str, Any]]
    ) -> None:
        """
        Args:
            written_out: from a state to what the store is given.
        """
        self._store, self._written_out = store, written_out
        self._changed = threading.Condition()
        self._newest: PlannerState | None = None
        self._closed = False
        self._superseded: SupersededError | None = None
        self._thread = threading.Thread(target=self._run, name="state-writer", daemon=True)
        self._thread.start()

    def add(self, state: PlannerState) -> None:
        """Queues a state to be written.

        Raises:
            SupersededError: another planner has taken over.
        """
        if self._superseded is not None:
            raise self._superseded.with_traceback(None)
        with self._changed:
            self._newest = state
            self._changed.notify()

    def close(self) -> None:
        """Writes the last state, and ends."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while self._superseded is None:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._newest)
                state, self._newest = self._newest, None
                if state is None:
                    return
            began = time.monotonic()
            try:
                self._store.save_state(state.step, self._written_out(state))
                self.error = None
            except SupersededError as error:
                self._superseded = error
            except EvenstepError as error:
                self.error = str(error)
                _LOGGER.warning("the state before step %d is not kept: %s", state.step, error)
            with self._changed:
                passed = time.monotonic() - began
                self._changed.wait_for(lambda: self._closed, timeout=_INTERVAL - passed)


class StoredPlanner(Planner):
    """See the module docstring."""

    def __init__(
        self,
        job: Job,
        metadata: Metadata,
        store: RunStore,
        *,
        seen: RunPlace | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            metadata, seen: see `Planner`.
            store: of the run. If it has states, this planner resumes where the previous one ended.
            state: to resume from if the store has none.

        Raises:
            ConfigurationError: the store cannot be read or written.
            MismatchError: a state is of another job.
        """
        super().__init__(job, metadata, seen=seen)
        self._store, self._given = store, job
        self._first = 0
        """The first step that this planner has planned. Earlier ones are planned again."""
        self._started: int | None = None
        """The first step of the mesh. Its state must not be overwritten: if the write were cut off,
        the state of the previous mesh would be left."""
        self._past: Planner | None = None
        self._checkpoints: set[int] = set()
        """Steps whose states were asked for, and written."""
        self._writer: StateWriter | None = None
        store.begin()
        self._met = store.last_meeting()
        if store.newest_state() is not None:
            self._recover()
        elif state is not None:
            self.load_state_dict(state)
        if store.newest_state(self._step) is None:
            store.save_state(self._step, self._written_out(self._state()))
        self._writer = StateWriter(store, self._written_out)

    def _recover(self) -> None:
        self._load(self, self._store.planned)
        self._first = self._step
        self._record_again()
        for report in self._store.reports:
            if report.planned_step < self._step:
                self._signals.note(*report.said)
        self._plan_again(self, self._store.planned)
        for report in self._store.reports_since(self._step):
            self._signals.add(*report.said)

    def _record_again(self) -> None:
        """Records the steps before those that are planned again, of which the planner that died
        had not written what was seen, as far as the store has their states."""
        if self._seen is None:
            return
        last, made = self._seen.last_step(), list[LoadingPlan | None]()
        begin = max(self._first - 2 * STEPS, 0) if last is None else last + 1
        for step in range(begin, self._first):
            try:
                made.append(self.plan(step))
            except EvenstepError:
                made.clear()
        for plan in filter(None, made):
            self._seen.add(plan)

    # Messages

    def plan(self, step: int) -> LoadingPlan | None:
        """See `Planner.plan`."""
        if 0 <= step < self._first:
            return self._planner_of(step, step + 1).plan(step)
        return super().plan(step)

    def state_dict(self, step: int | None = None, taken: bool = False) -> dict[str, Any]:
        """See `Planner.state_dict`. The store has it before this returns."""
        state = super().state_dict(step, taken)
        if state["step"] not in self._checkpoints:
            self._store.add_checkpoint(state["step"], state)
            self._checkpoints.add(state["step"])
        return state

    def common_state(self, step: int) -> dict[str, Any]:
        """See `Planner.common_state`. The store knows of it before this returns."""
        state = super().common_state(step)
        if step == self._met:
            self._store.save_meeting(step)
        return state

    def status(self) -> dict[str, Any]:
        """See `Planner.status`; `store_error` is why the last state could not be written."""
        error = None if self._writer is None else self._writer.error
        return {**super().status(), "store_error": error}

    def _move(self, state: Mapping[str, Any], job: Job) -> dict[str, Any]:
        """See `Planner.remesh`. Removes the states of later steps from the store. A planner that
        restarts before that is done continues with the old mesh; `remesh` is to be called again."""
        step = state["step"]
        assert self._writer is not None
        self._writer.close()
        try:
            written = {**state, "job": job.fingerprint, "mesh": job.tree.to_dict()}
            self._store.save_state(step, written)
            self._store.drop_after(step)
            self._started, self._first, self._past = step, min(self._first, step), None
            self._checkpoints = {each for each in self._checkpoints if each <= step}
            return super()._move(state, job)
        finally:
            self._writer = StateWriter(self._store, self._written_out)

    def close(self) -> None:
        """Writes the last state. Idempotent."""
        if self._writer is not None:
            self._writer.close()
        super().close()

    def _add_change(self, change: Change) -> None:
        self._store.add_change(self._step, change)
        super()._add_change(change)

    def _add_report(self, step: int, rank: int, signals: Mapping[str, Any]) -> None:
        self._store.add_report(self._step, step, rank, signals)
        super()._add_report(step, rank, signals)

    def _keep(self, logged: LoggedPlan) -> None:
        if self._writer is not None:  # it has recovered
            if self._mixture.peaks is None:  # weights may follow reports
                self._store.add_planned(self._step)
            if logged.before.step != self._started:
                self._writer.add(logged.before)
        super()._keep(logged)

    # Steps from before this planner started

    def _state_before(self, step: int) -> PlannerState:
        if 0 <= step < self._first:
            return self._planner_of(step, step)._state_before(step)
        return super()._state_before(step)

    def _with_reports(self, state: PlannerState) -> PlannerState:
        if state.step < self._first:
            reports = self._store.reports_since(state.step)
            known = [*state.signals, *(each.said for each in reports)]
            state = replace(state, signals=merged(known))
        return super()._with_reports(state)

    def _planner_of(self, step: int, until: int) -> Planner:
        """A planner that keeps a step or plans it next, and has planned all steps below `until`."""
        past = self._past
        if past is None or (past._log.get(step) is None and past.step != step):
            past = Planner(self._job, self._metadata)
            self._load(past, step)
            self._past = past
        self._plan_again(past, until)
        return past

    def _load(self, planner: Planner, step: int) -> None:
        """Loads the newest state of a step up to this one.

        Raises:
            ConfigurationError: there is none.
            MismatchError: it is of another job.
        """
        found = self._store.newest_state(step)
        if found is None:
            raise ConfigurationError(
                f"step {step} cannot be planned again: the store has no state of it or a step "
                "before it"
            )
        planner._resume(found[1], self._job_of(found[1]))
        planner._changes.add(*self._changes.made, *self._store.changes)
        planner._log.clear()

    def _job_of(self, state: Mapping[str, Any]) -> Job:
        """The job on the mesh for which a state was written.

        Raises:
            MismatchError: it is another job.
        """
        job = self._given
        if state["job"] != job.fingerprint:
            job = job.on(ClientPlaceTree.from_dict(state["mesh"]))
        if state["job"] != job.fingerprint:
            raise MismatchError(
                f"the store has states of another job: {state['job']}, and this one is "
                f"{job.fingerprint}; give each run of a job another place"
            )
        return job

    def _plan_again(self, planner: Planner, until: int) -> None:
        """Plans the steps below `until` with the reports that counted for them then."""
        while planner.step < until:
            step = planner.step
            for report in self._store.reports_since(step):
                if report.planned_step == step:
                    planner._signals.add(*report.said)
            try:
                planner.plan(step)
            except EvenstepError:
                return  # it failed then, too, and everyone gets the error again
            if planner.step == step:
                return  # the mixture has ended

    def _written_out(self, state: PlannerState) -> dict[str, Any]:
        return {**self._to_dict(state), "mesh": self._job.tree.to_dict()}


_ELSEWHERE = "the planner runs on another machine than the one that started the service"
_REMEDY = "pass store=, a folder that all machines see or a URL"


class UnstoredPlanner(Planner):
    """The planner of a run whose store is on another machine. If it dies, the next one plans all
    steps again from the first one, without what trainers reported."""

    def __init__(self, job: Job, *arguments: Any, **options: Any) -> None:
        super().__init__(job, *arguments, **options)
        schedule = job.draws.schedule
        if schedule is not None and as_schedule(schedule).peaks() is None:
            raise _needs_reports()
        _LOGGER.warning(
            "%s: if it dies, the next one plans all steps again from the first one; %s",
            *(_ELSEWHERE, _REMEDY),
        )

    def _add_change(self, change: Change) -> None:
        raise ConfigurationError(
            f"{_ELSEWHERE}: if it dies, the next one does not know of a change; {_REMEDY}"
        )

    def _keep(self, logged: LoggedPlan) -> None:
        if self._job.policy is None and self._mixture.peaks is None:  # mix() was given a schedule
            raise _needs_reports()
        super()._keep(logged)


def _needs_reports() -> ConfigurationError:
    return ConfigurationError(
        f"{_ELSEWHERE}, and weights may follow what trainers report: if it dies, the next one does "
        f"not know the reports; {_REMEDY}"
    )


def planner_of(
    job: Job,
    layout: SourceLayout,
    handles: Sequence[Handle],
    state: Mapping[str, Any] | None,
    seen: RunPlace | None,
    store: RunPlace | None,
    mesh: Any = None,
) -> Planner:
    """The planner of a run, at its start or after one that died.

    Args:
        state: to resume from, if the store has none of this run.
        store: None keeps nothing.
        mesh: that a planner without a store continues with; None is the job's.

    Raises:
        ConfigurationError: the store cannot be read or written.
        MismatchError: a state is of another job.
    """
    loaders = LoaderPool(layout, handles, columns=job.columns, sources=job.sources)
    if store is not None and store.is_here:
        return StoredPlanner(job, loaders, store.open(job), seen=seen, state=state)
    kind = Planner if store is None else UnstoredPlanner
    planner = kind(job if mesh is None else job.on(mesh), loaders, seen=seen)
    if state is not None:
        planner.load_state_dict(state)
    return planner
