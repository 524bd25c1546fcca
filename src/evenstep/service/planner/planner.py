"""`Planner`: decides, step after step, which samples are drawn and where each goes.

It sees metadata only. A plan is a function of the job, of what was drawn before and of the signals
that count for the step, never of when or by whom it is asked for: steps are planned strictly in
order, once, and every request for a step gets the same plan. The planner's state is a few
numbers for each source and the metadata of carried samples.

An error is an outcome like a plan: every client gets it, for that step and all later ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.mixture.sample_table import Metadata, SampleTable
from evenstep.mixture.schedules import ByHand
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.messages import Handle
from evenstep.service.planner.changes import Change, Changes, in_effect
from evenstep.service.planner.draws import BadSamples, Draws
from evenstep.service.planner.loader_pool import LoaderPool
from evenstep.service.planner.planner_state import (
    LoggedPlan,
    PlanLog,
    PlannerState,
    loaded_state,
    source_digests,
    state_to_dict,
)
from evenstep.service.planner.policy_steps import PolicySteps, Windows
from evenstep.service.planner.seen import STATE_KEY
from evenstep.service.planner.seen_writer import SeenWriter
from evenstep.service.planner.store.run_store import RunPlace
from evenstep.service.planner.strategy_steps import StrategySteps
from evenstep.service.planner.trainer_reports import Signals, merged, plain_signals
from evenstep.strategy import LoadingPlan

logger = logging.getLogger("evenstep")


class Planner:
    """See the module docstring."""

    def __init__(self, job: Job, metadata: Metadata, *, seen: RunPlace | None = None) -> None:
        """
        Args:
            metadata: describes the samples that can be drawn; a `LoaderPool`, or an array of
                lengths, such as `BufferedMetadata`.
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
        self._log = PlanLog(job.memory.plans_kept)
        self._seen = None if seen is None else SeenWriter(seen)
        self._draws = Draws(self._mixture, metadata, self._loaders, BadSamples(job.sources))
        self._steps = self._begin_steps(Windows.of(SampleTable.empty(job.names, job.columns)))
        self._changes = Changes()
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
                known = error if isinstance(error, EvenstepError) else _for_all(error, self._step)
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
        return self._changes.token

    def change(
        self, asked: Change, *, token: str, first: int, dry_run: bool = False
    ) -> dict[str, Any] | None:
        """Changes the job from a step on; see `Change`.

        Args:
            dry_run: whether only what would change is asked for.
            token: of `begin_change`. A planner that has restarted since may have handed out later
                steps than were found.
            first: the first step that was not handed out when the token was known already.

        Returns:
            JSON-able: the change, and the weights `before` and `after` at its step, as far as the
            job's own schedule says them. None if the token is of an earlier planner: begin again.

        Raises:
            ConfigurationError: the change cannot be made.
        """
        known = self._changes.known(asked)
        if known is not None:
            return self._changes.told(known, self._weights_at)
        if token != self._changes.token:
            return None
        if self._ended_at is not None or self._failure is not None:
            raise ConfigurationError(
                f"the job has {'ended' if self._failure is None else 'failed'} at step "
                f"{self._step}: nothing can be changed any more"
            )
        change = self._changes.next(asked, self._job.names, max(first, self._step))
        told = self._changes.told(change, self._weights_at)
        if not dry_run:
            self._add_change(change)
            logger.info("changed by hand: %s", change)
        return told

    def _weights_at(self, step: int, by_hand: ByHand) -> Mapping[str, float]:
        by_step = self._job.policy is None  # a policy draws ahead of the step that trains
        return self._mixture.weights_at(step if by_step else self._mixture.step, by_hand)

    def _add_change(self, change: Change) -> None:
        self._changes.add(change)

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
        self._changes.begin_anew()
        for change in self._changes.made:
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
        self._draws.mixture, self._draws.bad.found = mixture, loaded.bad
        self._step, self._changes.made = loaded.step, loaded.changes
        self._signals = Signals(job.memory.prefetch, job.memory.plans_kept)
        self._signals.load(loaded.signals)
        self._ended_at, self._failure, self._state_before_last = None, None, None
        self._steps = self._begin_steps(loaded.windows)

    def _begin_steps(self, windows: Windows) -> PolicySteps | StrategySteps:
        if self._job.policy is None:
            return StrategySteps(self._job, self._draws, windows)
        return PolicySteps(self._job, self._draws.next, windows)

    def status(self) -> dict[str, Any]:
        """JSON-able: how far planning is, and what it has drawn."""
        logged = self._log.get(self._step - 1)
        last = None if logged is None else logged.plan
        carried = len(self._steps.windows.waiting)
        return {
            "step": self._step,
            "ended_at": self._ended_at,
            "failed": self._failure and str(self._failure),
            "drawn": dict(zip(self._job.names, self._mixture.state.counts.tolist())),
            "bad_samples": self._draws.bad.counts(),
            "carried": carried,
            "left_over": carried if self._ended_at is not None else 0,
            "imbalance": last and last.imbalance,
            "imbalance_before": last and last.imbalance_before,
            "weights": dict(last.weights) if last else {},
            "notes": list(last.notes) if last else [],
            "changes": [change.to_dict() for change in self._changes.lasting()],
        }

    # Planning

    def _plan_next(self, before: PlannerState) -> None:
        step = self._step
        plan = None
        self._mixture.by_hand, ends = in_effect(self._changes.made, step)
        if not ends:
            if signals := self._signals.take(step):
                self._mixture.report(**signals)
            plan = self._steps.plan(step)
        if plan is None:
            self._ended_at, self._state_before_last = step, before
            return
        by_hand = [str(each) for each in self._changes.lasting() if each.step == step]
        if by_hand:
            plan = replace(plan, notes=(*plan.notes, *by_hand))
        self._keep(LoggedPlan(plan, before))
        self._step = step + 1

    def _keep(self, logged: LoggedPlan) -> None:
        self._log.add(logged)
        if self._seen is not None:
            self._seen.add(logged.plan)

    def _state_before(self, step: int) -> PlannerState:
        logged = self._log.get(step)
        if logged is not None:
            return logged.before
        if step != self._step and (self._ended_at is None or step < self._step):
            raise ConfigurationError(
                f"the state before step {step} is not there: step {self._step} comes next, and "
                f"{self._job.memory.plans_kept} steps are kept (plans_kept= of ServiceMemory)"
            )
        return self._state()

    def _with_reports(self, state: PlannerState) -> PlannerState:
        """The state with all reports on earlier steps that no earlier plan has used, including
        those that have arrived since."""
        later = [self._log.get(number) for number in range(state.step, self._step)]
        since = [each for logged in later if logged for each in logged.before.signals]
        known = [*state.signals, *since, *self._state().signals, *self._signals.to_list()]
        signals = merged(each for each in known if each[0] < state.step)
        return replace(state, signals=signals, changes=self._changes.made)

    def _state(self) -> PlannerState:
        """The state before the step that is planned next, or whose planning failed."""
        if self._state_before_last is not None:
            return self._state_before_last
        return PlannerState(
            step=self._step,
            mixture=self._mixture.state,
            windows=self._steps.windows,
            bad=self._draws.bad.found,
            signals=self._signals.to_list(),
            changes=self._changes.made,
        )


def _for_all(error: BaseException, step: int) -> EvenstepError:
    """An error in the user's code as one that can be sent to every client."""
    return EvenstepError(
        f"the strategy or schedule raised {type(error).__name__} in step {step}: {error}"
    )
