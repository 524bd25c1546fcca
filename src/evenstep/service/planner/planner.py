"""`Planner`: decides, step after step, which samples are drawn and where each goes.

It sees metadata only. A plan is a function of the job, of what was drawn before and of the signals
that count for the step, never of when or by whom it is asked for: steps are planned strictly in
order, once, and every request for a step gets the same plan. The planner's state is a few
numbers for each source and the metadata of carried samples.

An error is an outcome like a plan: every client gets it, for that step and all later ones.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.mixture import DrawRecord
from evenstep.mixture.sample_table import Metadata, SampleTable
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.messages import Handle
from evenstep.service.planner.changes import (
    Change,
    InEffect,
    begun_anew,
    check_change,
    uncancelled,
)
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.service.planner.plan_log import LoggedPlan, PlanLog
from evenstep.service.planner.plan_validation import check_plan, check_room, for_all
from evenstep.service.planner.planner_state import (
    BadSamples,
    PlannerState,
    loaded_state,
    source_digests,
    state_to_dict,
)
from evenstep.service.planner.policy_steps import PolicySteps, Windows
from evenstep.service.planner.seen import STATE_KEY
from evenstep.service.planner.seen_writer import SeenWriter
from evenstep.service.planner.store.run_store import RunPlace
from evenstep.service.planner.trainer_reports import Signals, merged, plain_signals
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.plan_builder import TooFewSamplesError

logger = logging.getLogger("evenstep")


class Planner:
    """See the module docstring."""

    def __init__(
        self,
        job: Job,
        metadata: Metadata,
        *,
        plan_log: str | os.PathLike[str] | None = None,
        seen: RunPlace | None = None,
    ) -> None:
        """
        Args:
            metadata: describes the samples that can be drawn; a `LoaderPool`, or an array of
                lengths, such as `BufferedMetadata`.
            plan_log: a file that plans are written to, a line of JSON each.
            seen: where it is recorded which samples go into which steps.
        """
        self._job, self._metadata = job, metadata
        self._loaders = metadata if isinstance(metadata, LoaderPool) else None
        sources = {} if self._loaders is None else self._loaders.describe()
        self._sizes = {name: source["size"] for name, source in sources.items()}
        self._contents = {
            name: source_digests(source["fingerprint"]) for name, source in sources.items()
        }
        self._mixture = job.mixture(self._sizes)
        self._signals = Signals(job.memory.prefetch, job.memory.plans_kept)
        self._log = PlanLog(job.memory.plans_kept, plan_log)
        self._seen = None if seen is None else SeenWriter(seen)
        self._windows = Windows.of(SampleTable.empty(job.names, job.columns))
        """Of a strategy: the samples that found no room."""
        self._policy_steps = self._begin_policy()
        self._records: list[DrawRecord] = []
        """Of the draws for the step being planned."""
        self._changes: tuple[Change, ...] = ()
        """Made by hand, in order."""
        self._token = secrets.token_hex(8)
        """Another in each planner; see `begin_change`."""
        self._bad = BadSamples(job.sources)
        self._ranks = set(job.tree.ranks.ravel().tolist())
        """The ranks of this mesh and all earlier ones."""
        self._step = 0
        self._ended_at: int | None = None
        self._failure: Exception | None = None
        self._failed_at = 0
        self._met = -1
        """The last step at which all ranks have met to save."""
        self._state_before_last: PlannerState | None = None
        """Before the step that failed or found the end: it may have drawn samples, which are in no
        plan."""

    @property
    def step(self) -> int:
        """The step that is planned next."""
        return self._step

    # Plans

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step, made now if need be, with all before it. None if the mixture has
        ended before it.

        Raises:
            ConfigurationError: the step's plan is not kept any more, or the strategy returned no
                plan of this step.
            SampleError: a sample cannot be read, prepared or placed.
            EvenstepError: an earlier step failed with it.
        """
        if step < 0:
            raise ConfigurationError(f"step={step} must be at least 0")
        while True:
            if self._failure is not None and step >= self._failed_at:
                raise self._failure.with_traceback(None)
            if step < self._step:
                return self._log.plan(step)
            if self._ended_at is not None:
                return None
            before = self._state()
            try:
                self._plan_next(before)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also SystemExit
                known = error if isinstance(error, EvenstepError) else for_all(error, self._step)
                self._state_before_last = before
                self.fail(self._step, known)
                if known is error:
                    raise
                raise known from error

    def report(self, step: int, rank: int, signals: Mapping[str, Any]) -> None:
        """Takes what a rank measured in a step, such as ``{"loss_by_source": {"web": 2.1}}``; see
        `Signals` for the step from which it counts.

        Raises:
            ConfigurationError: a signal cannot be written as JSON, or the rank is unknown.
        """
        if rank not in self._ranks:
            self._job.tree.place(rank)  # says which ranks there are
        plain = plain_signals(step, rank, signals)
        if not self._signals.repeats(step, rank, plain):
            self._add_report(step, rank, plain)

    def _add_report(self, step: int, rank: int, signals: Mapping[str, Any]) -> None:
        self._signals.add(step, rank, signals)

    # Changes by hand

    def begin_change(self) -> str:
        """The token for `change`. Ask before looking which steps have been handed out."""
        return self._token

    def change(
        self,
        kind: str,
        value: Any,
        *,
        by: str,
        time: float,
        token: str,
        first: int,
        at_step: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any] | None:
        """Changes the job from a step on; see `Change`.

        Args:
            by, time: who makes the change, and when; a second message of both says the same again.
            token: of `begin_change`. A planner that has restarted since may have handed out later
                steps than were found.
            first: the first step that was not handed out when the token was known already.
            at_step: None is the first step that is neither handed out nor planned.
            dry_run: only says what would change.

        Returns:
            JSON-able: the change, and the weights `before` and `after` at its step, as far as the
            job's own schedule says them. None if the token is of an earlier planner: begin again.

        Raises:
            ConfigurationError: the change cannot be made.
        """
        known = [change for change in self._changes if (change.by, change.time) == (by, time)]
        if known:
            return self._told(known[0])
        if token != self._token:
            return None
        if self._ended_at is not None or self._failure is not None:
            raise ConfigurationError(
                f"the job has {'ended' if self._failure is None else 'failed'} at step "
                f"{self._step}: nothing can be changed any more"
            )
        first = max(first, self._step)
        number = max((change.number for change in self._changes), default=-1) + 1
        change = Change(
            number=number,
            kind=kind,
            step=first if at_step is None else at_step,
            value=value,
            by=by,
            time=time,
        )
        check_change(change, self._changes, self._job.names, first)
        told = self._told(change)
        if not dry_run:
            self._add_change(change)
            logger.info("changed by hand: %s", change)
        return told

    def _told(self, change: Change) -> dict[str, Any]:
        earlier = [each for each in self._changes if each.number < change.number]
        return {
            **change.to_dict(),
            "before": dict(self._weights_at(change.step, earlier)),
            "after": dict(self._weights_at(change.step, [*earlier, change])),
        }

    def _weights_at(self, step: int, changes: Sequence[Change]) -> Mapping[str, float]:
        now = self._mixture.by_hand
        self._mixture.by_hand = InEffect.at(changes, step).by_hand
        try:
            by_step = self._job.policy is None  # a policy draws ahead of the step that trains
            return self._mixture.weights_at(step if by_step else self._mixture.step)
        finally:
            self._mixture.by_hand = now

    def _add_change(self, change: Change) -> None:
        self._changes = (*self._changes, change)

    def fail(self, step: int, error: Exception) -> None:
        """Makes this error the answer to every client from this step on."""
        if self._failure is None or step < self._failed_at:
            self._failure, self._failed_at = error, step

    def close(self) -> None:
        """Ends the planner. Idempotent."""
        if self._seen is not None:
            self._seen.close()

    # Loaders

    def use_loaders(self, handles: Sequence[Handle], layout: SourceLayout) -> None:
        """See `LoaderPool.use_loaders`."""
        assert self._loaders is not None
        self._loaders.use_loaders(handles, layout)

    def reached(self) -> dict[str, tuple[int, int]]:
        """See `LoaderPool.reached`."""
        return {} if self._loaders is None else self._loaders.reached()

    # State

    def state_dict(self, step: int | None = None, taken: bool = False) -> dict[str, Any]:
        """The state from which the same steps follow: JSON-able and small.

        Args:
            step: the step to resume at; None is the one that is planned next. A trainer that has
                received steps up to s asks for s + 1, whatever was planned ahead of it.
            taken: whether trainers have taken all steps before it. A restarted planner may have to
                plan them again.

        Raises:
            ConfigurationError: the step is not planned yet, or its plan is not kept any more.
            EvenstepError: a step cannot be planned again.
        """
        if taken and step is not None and step > self._step:
            self.plan(step - 1)
        state = self._with_reports(self._state_before(self._step if step is None else step))
        return self._to_dict(state)

    def _to_dict(self, state: PlannerState) -> dict[str, Any]:
        job, mixture = self._job, self._mixture
        made = state_to_dict(state, job=job, contents=self._contents, mixture=mixture)
        return made if self._seen is None else {**made, STATE_KEY: self._seen.run}

    def common_state(self, step: int) -> dict[str, Any]:
        """As `state_dict`, for all ranks that must save: they have met at the step."""
        state = self.state_dict(step, taken=True)
        self._met = max(self._met, step)
        if self._seen is not None:
            self._seen.write_soon()
        return state

    def last_meeting(self) -> int:
        """The last step for which there was a `common_state`; -1 if there was none."""
        return self._met

    def saving_ranks(self, step: int, begins: bool) -> list[int]:
        """The ranks that must save together at a step: those that fetch anything in the step before
        it.

        Args:
            begins: whether their mesh begins there. Then it is those that fetch anything in it.

        Raises:
            ConfigurationError: the plan is not kept any more.
            EvenstepError: the step cannot be planned.
        """
        plan = self.plan(step if begins else step - 1)
        plans = [] if plan is None else [plan, *plan.subplans.values()]
        return sorted({rank for each in plans for rank in each.delivery.fetching.tolist()})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state. The mesh, the strategy and weights may differ; the plans kept so
        far are forgotten.

        Raises:
            MismatchError: it is of another version, seed or `by`, of other data or of a modality
                that the job does not have.
        """
        self._resume(state, self._job)
        self._changes = begun_anew(self._changes)
        for change in self._changes:
            logger.warning("changed by hand in the run before, and still so: %s", change)
        self._log.clear()

    def remesh(self, mesh: Any, at_step: int) -> dict[str, Any]:
        """Plans for another mesh from a step on. Later steps are planned again: nobody has trained
        on them. Returns the state before the step, on the mesh.

        Args:
            mesh: see `Job.on`.
            at_step: must still be kept.

        Raises:
            ConfigurationError: the plan of the step is not kept any more.
            EvenstepError: a step before it cannot be planned.
        """
        if at_step > self._step:
            self.plan(at_step - 1)
        return self._move(self.state_dict(min(at_step, self._step)), self._job.on(mesh))

    def _move(self, state: Mapping[str, Any], job: Job) -> dict[str, Any]:
        reported = self._signals
        self._resume(state, job)
        self._signals.recall(reported, self._step)
        self._log.clear(self._step)
        return Planner.state_dict(self)

    def _resume(self, state: Mapping[str, Any], job: Job) -> None:
        mixture = job.mixture(self._sizes)
        loaded = loaded_state(state, job=job, contents=self._contents, mixture=mixture)
        self._job, self._mixture = job, mixture
        self._ranks |= set(job.tree.ranks.ravel().tolist())
        self._windows, self._step = loaded.windows, loaded.step
        self._bad.found, self._changes = loaded.bad, loaded.changes
        self._signals = Signals(job.memory.prefetch, job.memory.plans_kept)
        self._signals.load(loaded.signals)
        self._ended_at, self._failure, self._state_before_last = None, None, None
        self._policy_steps = self._begin_policy()

    def _begin_policy(self) -> PolicySteps | None:
        if self._job.policy is None:
            return None
        return PolicySteps(self._job, self._draw, self._windows)

    def status(self) -> dict[str, Any]:
        """JSON-able: how far planning is, and what it has drawn."""
        last = self._log.get(self._step - 1)
        steps = self._policy_steps
        carried = len((self._windows if steps is None else steps.windows).waiting)
        return {
            "step": self._step,
            "ended_at": self._ended_at,
            "failed": None if self._failure is None else str(self._failure),
            "drawn": dict(zip(self._job.names, self._mixture.state.counts.tolist())),
            "bad_samples": self._bad.counts(),
            "carried": carried,
            "left_over": carried if self._ended_at is not None else 0,
            "imbalance": None if last is None else last.plan.imbalance,
            "imbalance_before": None if last is None else last.plan.imbalance_before,
            "weights": {} if last is None else dict(last.plan.weights),
            "notes": [] if last is None else list(last.plan.notes),
            "changes": [change.to_dict() for change in uncancelled(self._changes)],
        }

    # Planning

    def _plan_next(self, before: PlannerState) -> None:
        step = self._step
        self._records = []
        now = InEffect.at(self._changes, step)
        self._mixture.by_hand = now.by_hand
        if now.ends:
            plan = None
        elif self._policy_steps is not None:
            self._use_signals()
            plan = self._policy_steps.plan(step)
        else:
            plan = self._by_strategy()
        if plan is None:
            self._ended_at, self._state_before_last = step, before
            return
        by_hand = [str(each) for each in uncancelled(self._changes) if each.step == step]
        if by_hand:
            plan = replace(plan, notes=(*plan.notes, *by_hand))
        self._keep(LoggedPlan(plan, tuple(self._records), before))
        self._step = step + 1

    def _use_signals(self) -> None:
        if signals := self._signals.take(self._step):
            self._mixture.report(**signals)

    def _draw(self) -> tuple[SampleTable, Mapping[str, float]] | None:
        """The mixture's next draw and its weights, for a policy; None after its end."""
        if self._mixture.ended:
            return None
        if self._loaders is not None:
            self._loaders.forget_drawn()
        drawn = self._mixture.draw(self._mixture.step, self._metadata)
        return drawn, self._noted_draw().weights

    def _by_strategy(self) -> LoadingPlan | None:
        job, step, carried = self._job, self._step, self._windows.table
        assert job.strategy is not None
        if self._mixture.ended and not len(carried):
            return None
        if self._loaders is not None:
            self._loaders.forget_drawn()
        self._use_signals()
        graph = DGraph.of(
            self._metadata,
            job.tree,
            step=step,
            micro_batches=job.micro_batches,
            max_tokens=job.max_tokens,
            carried=carried,
            mixture=self._mixture,
        ).modality(*job.measures.counted)
        try:
            made = job.strategy(graph, job.tree, step)  # draws the step, by graph.mix()
        except TooFewSamplesError:
            if not self._mixture.ended:
                raise
            self._windows = Windows.of(self._with_drawn())
            return None
        samples = self._with_drawn()
        if not self._records:
            raise ConfigurationError(
                f"the strategy has drawn nothing of the job's sources in step {step}; let it call "
                "graph.mix(), for the job's own weights, or graph.mix(weights)"
            )
        plan = check_plan(made, step=step, tree=job.tree, samples=samples)
        check_room(plan)
        self._windows = Windows.of(plan.carried)
        return plan

    def _noted_draw(self) -> DrawRecord:
        record = self._mixture.record
        assert record is not None
        self._records.append(record)
        if self._loaders is not None:
            self._bad.note_step(record.bad, self._loaders.failures)
        return record

    def _keep(self, logged: LoggedPlan) -> None:
        self._log.add(logged)
        if self._seen is not None:
            self._seen.add(logged.plan)

    def _with_drawn(self) -> SampleTable:
        """Carried samples, and those that the strategy has drawn for the step being planned. Draws
        nothing itself: a mixture remembers the step that it drew last."""
        record, carried = self._mixture.record, self._windows.table
        if record is None or record.step != self._step:
            return carried
        self._noted_draw()
        drawn = self._mixture.draw(self._step, self._metadata)
        return SampleTable.concatenate([carried, drawn]) if len(carried) else drawn

    def _state_before(self, step: int) -> PlannerState:
        logged = self._log.get(step)
        if logged is not None:
            return logged.before
        if step != self._step and (self._ended_at is None or step < self._step):
            raise ConfigurationError(
                f"the state before step {step} is not there: step {self._step} is planned "
                f"next, and {self._job.memory.plans_kept} steps are kept (plans_kept= of "
                "ServiceMemory)"
            )
        return self._state()

    def _with_reports(self, state: PlannerState) -> PlannerState:
        """The state with all reports on earlier steps that no earlier plan has used, including
        those that have arrived since."""
        later = [self._log.get(number) for number in range(state.step, self._step)]
        since = [each for logged in later if logged for each in logged.before.signals]
        known = [*state.signals, *since, *self._state().signals, *self._signals.to_list()]
        signals = merged(each for each in known if each[0] < state.step)
        return replace(state, signals=signals, changes=self._changes)

    def _state(self) -> PlannerState:
        """The state before the step that is planned next, or whose planning failed."""
        if self._state_before_last is not None:
            return self._state_before_last
        steps = self._policy_steps
        return PlannerState(
            step=self._step,
            mixture=self._mixture.state,
            windows=self._windows if steps is None else steps.windows,
            bad=self._bad.found,
            signals=self._signals.to_list(),
            changes=self._changes,
        )
