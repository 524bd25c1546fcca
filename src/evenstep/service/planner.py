"""`Planner`: decides, step after step, which samples are drawn and where each goes.

It knows metadata only. What it decides is a function of the job, of what was drawn before and of
the signals that count for the step, never of when it is asked or by whom: steps are planned
strictly in order, once, and who asks again is given the same plan. Its state is a few numbers of
each source and the metadata of samples that wait.

An error is as much an outcome as a plan is: every client gets it, for that step and all that
follow.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from evenstep.errors import ConfigurationError, EvenstepError, MismatchError, SampleError
from evenstep.service.job import Job
from evenstep.service.plan_log import LoggedPlan, PlanLog, PlannerState
from evenstep.service.plan_validation import check_plan
from evenstep.service.signals import Signals
from evenstep.service.source_layout import StageKey
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mixture import Mixture
from evenstep.strategy.sample_table import Metadata, SampleTable

__all__ = ["Planner", "Stages"]

_VERSION = 1
_MOST_CARRIED = 2  # steps' worth of tokens that may wait


@runtime_checkable
class Stages(Protocol):
    """Metadata that comes from loaders, which also carry plans out: `Loaders`."""

    def describe(self) -> dict[str, dict[str, Any]]: ...

    def refresh(self) -> None: ...

    def stage(self, plan: LoadingPlan, keys: Sequence[StageKey] | None = None) -> None: ...


class Planner:
    """See the module docstring."""

    def __init__(
        self, job: Job, metadata: Metadata, *, plan_log: str | os.PathLike[str] | None = None
    ) -> None:
        """
        Args:
            metadata: `Loaders`, or any other provider, for which nothing is staged.
            plan_log: a file that plans are written to, a line of JSON each.
        """
        self._job, self._metadata = job, metadata
        self._loaders = metadata if isinstance(metadata, Stages) else None
        described = {} if self._loaders is None else self._loaders.describe()
        self._sizes = {name: told["size"] for name, told in described.items()}
        self._contents = {name: _digest(told["fingerprint"]) for name, told in described.items()}
        self._mixture = self._new_mixture()
        self._signals = Signals(job.prefetch)
        self._log = PlanLog(job.plans_kept, plan_log)
        self._carried = SampleTable.empty(job.names, job.columns)
        self._step = 0
        self._buckets = job.tree.sizes["DP"]
        self._ended_at: int | None = None
        self._failure: Exception | None = None
        self._failed_at = 0
        self._stopped: PlannerState | None = None
        """Before the step that failed, of which something may have been drawn."""

    @property
    def step(self) -> int:
        """The step that is planned next."""
        return self._step

    # Plans

    def plan(self, step: int) -> LoadingPlan | None:
        """The plan of a step, made now if need be, with all before it; its samples are staged.
        None where the mixture has ended before it.

        Raises:
            ConfigurationError: the step lies before those that are kept, or the strategy gave no
                plan of this step.
            SampleError: a sample cannot be read, prepared or placed.
            EvenstepError: what stopped an earlier step.
        """
        if step < 0:
            raise ConfigurationError(f"step={step} must be from 0")
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
            except Exception as error:
                told = error if isinstance(error, EvenstepError) else _told(error, self._step)
                self._stopped = before
                self.fail(self._step, told)
                if told is error:
                    raise
                raise told from error

    def restage(self, step: int, keys: Sequence[StageKey] | None = None) -> None:
        """Stages a planned step again, for a constructor that found it released or lost. Loaders
        that have it staged do nothing.

        Args:
            keys: the buckets that it lacks; what others have released stays released. None is all.

        Raises:
            ConfigurationError: its plan is not kept.
            MismatchError: a sample has changed since.
        """
        if self._loaders is not None:
            self._loaders.stage(self._log.plan(step), keys)

    def report(self, step: int, rank: int, signals: Mapping[str, Any]) -> None:
        """What a rank has found in a step, such as ``{"loss_by_source": {"web": 2.1}}``; see
        `Signals` for when it counts.

        Raises:
            ConfigurationError: a signal that is not made of what JSON has, or of an unknown rank.
        """
        self._job.tree.place(rank)
        try:
            plain = json.loads(json.dumps(dict(signals), default=lambda v: v.item()))
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigurationError(
                f"rank {rank} reports {signals!r} in step {step}, which is not made of numbers, "
                f"text, lists and mappings ({error}); report plain numbers, such as loss.item()"
            ) from error
        self._signals.add(step, rank, plain)

    def fail(self, step: int, error: Exception) -> None:
        """From this step on every client is told this error, instead of a plan."""
        if self._failure is None or step < self._failed_at:
            self._failure, self._failed_at = error, step

    # State

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """From which the same steps follow: JSON-able and small.

        Args:
            step: that is to come next; None is the one that is planned next. A trainer that has
                received steps up to s asks for s + 1, whatever was planned ahead of it.

        Raises:
            ConfigurationError: the step is not planned yet, or its plan is not kept.
        """
        if step is None or step == self._step:
            return self._written(self._state())
        logged = self._log.get(step)
        if logged is None and self._ended_at is not None and step > self._step:
            return self._written(self._state())
        if logged is None:
            raise ConfigurationError(
                f"the state before step {step} is not there: step {self._step} is planned next, "
                f"and {self._job.plans_kept} steps are kept (plans_kept= of Job)"
            )
        return self._written(logged.before)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state. The mesh, the strategy and weights may be others; plans kept until
        now are forgotten.

        Raises:
            MismatchError: it is of another version, seed or unit, of other data or of a modality
                that the job does not have.
        """
        if state.get("version") != _VERSION:
            raise MismatchError(
                f"version {state.get('version')!r} of a planner's state cannot be read; this "
                f"release reads {_VERSION}"
            )
        mixture = self._new_mixture()
        mixture.load_state_dict(state["mixture"])
        for name, content in state["contents"].items():
            now = self._contents.get(name)
            if self._contents and now != content:
                raise MismatchError(
                    f"source {name!r} has changed since the state was saved: its files, columns, "
                    f"transform or order are others ({content} then, {now} now), so positions name "
                    "other samples; restore what it was, or begin anew"
                )
        if list(state["columns"]) != list(self._job.columns):
            raise MismatchError(
                f"the state was saved with lengths of {state['columns']}, and the job has "
                f"{list(self._job.columns)}; keep its modalities"
            )
        self._mixture = mixture
        self._carried = _renumbered(SampleTable.from_dict(state["carried"]), self._job.names)
        self._signals = Signals(self._job.prefetch)
        self._signals.load(state["signals"])
        self._step = int(state["step"])
        self._ended_at, self._failure, self._stopped = None, None, None
        self._log.clear()

    def status(self) -> dict[str, Any]:
        """JSON-able: how far planning is, and what it has drawn."""
        last = self._log.get(self._step - 1)
        return {
            "step": self._step,
            "ended_at": self._ended_at,
            "failed": None if self._failure is None else str(self._failure),
            "drawn": dict(zip(self._job.names, self._mixture.state.counts.tolist())),
            "carried": len(self._carried),
            "left_over": len(self._carried) if self._ended_at is not None else 0,
            "imbalance": None if last is None else last.plan.imbalance,
            "imbalance_before": None if last is None else last.plan.imbalance_before,
            "weights": {} if last is None else dict(last.plan.weights),
            "notes": [] if last is None else list(last.plan.notes),
        }

    # Planning

    def _plan_next(self, before: PlannerState) -> None:
        job, step = self._job, self._step
        if self._mixture.ended and not len(self._carried):
            self._ended_at = step
            return
        if self._loaders is not None:
            self._loaders.refresh()
        signals = self._signals.take(step)
        if signals:
            self._mixture.report(**signals)
        graph = DGraph.of(
            self._metadata,
            job.tree,
            step=step,
            micro_batches=job.micro_batches,
            max_tokens=job.max_tokens,
            carried=self._carried,
            mixture=self._mixture,
        ).modality(*job.counted)
        try:
            made = job.strategy(graph, job.tree, step)
        except ConfigurationError:
            if not self._too_few():
                raise
            self._end(step)
            return
        if self._mixture.step != step + 1:
            raise ConfigurationError(
                f"the strategy has drawn nothing of the job's sources in step {step}; let it call "
                "graph.mix(), for the job's own weights, or graph.mix(weights)"
            )
        drawn = self._mixture.draw(step, self._metadata)
        samples = drawn
        if len(self._carried):
            samples = SampleTable.concatenate([self._carried, drawn])
        plan = check_plan(made, step=step, tree=job.tree, samples=samples)
        self._check_room(plan)
        if self._loaders is not None:
            self._loaders.stage(plan)
        assert self._mixture.record is not None
        self._log.add(LoggedPlan(plan, self._mixture.record, before))
        self._carried, self._buckets, self._step = plan.carried, plan.buckets, step + 1

    def _too_few(self) -> bool:
        """Whether the mixture has ended, and what is left cannot give every bucket a sample."""
        if not self._mixture.ended or self._mixture.record is None:
            return False
        drawn = 0
        if self._mixture.step == self._step + 1:
            drawn = sum(self._mixture.record.counts.values())
        return len(self._carried) + drawn < self._buckets

    def _end(self, step: int) -> None:
        """What is left over is in the state as carried samples."""
        drawn = self._mixture.draw(step, self._metadata)
        self._carried = SampleTable.concatenate([self._carried, drawn])
        self._ended_at = step

    def _check_room(self, plan: LoadingPlan) -> None:
        """Samples that are carried make room for fewer to come; where a step draws more than it
        holds, they would pile up."""
        if plan.max_tokens is None:
            return
        room = plan.buckets * plan.micro_batches * plan.max_tokens
        left = int(plan.tokens[~plan.assignment.placed].sum())
        if left <= _MOST_CARRIED * room:
            return
        raise SampleError(
            f"in step {plan.step}, {len(plan.carried):,} samples of {left:,} tokens find no room, "
            f"more than {_MOST_CARRIED} steps of {room:,} tokens hold: a step draws more than it "
            "holds, and samples pile up; lower tokens_per_step or samples_per_step, or raise "
            "max_tokens or micro_batches"
        )

    def _new_mixture(self) -> Mixture:
        return self._job.mixture(self._sizes)

    def _state(self) -> PlannerState:
        """Before the step that is planned next."""
        if self._stopped is not None:
            return self._stopped
        return PlannerState(
            step=self._step,
            mixture=self._mixture.state,
            carried=self._carried,
            signals=self._signals.to_list(),
        )

    def _written(self, state: PlannerState) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "job": self._job.fingerprint,
            "contents": dict(self._contents),
            "columns": list(self._job.columns),
            "step": state.step,
            "mixture": self._mixture.state_dict(state.mixture),
            "carried": state.carried.to_dict(),
            "signals": copy.deepcopy(state.signals),
            "drawn": dict(zip(self._job.names, state.mixture.counts.tolist())),
        }


def _renumbered(table: SampleTable, names: tuple[str, ...]) -> SampleTable:
    """With sources numbered as the job does now."""
    saved = table.to_dict()
    unknown = [name for name in {table.sources[s] for s in table.source} if name not in names]
    if unknown:
        raise MismatchError(
            f"the state has carried samples of source {unknown[0]!r}, which the job does not have; "
            "keep the source, with weight 0 if nothing more is to be drawn of it"
        )
    numbers = [names.index(table.sources[number]) for number in saved["source"]]
    return SampleTable.from_dict({**saved, "sources": list(names), "source": numbers})


def _digest(fingerprint: Mapping[str, Any]) -> str:
    text = json.dumps(fingerprint, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _told(error: Exception, step: int) -> EvenstepError:
    """An error of the user's own code as one that every client can be sent."""
    return EvenstepError(
        f"the strategy or schedule raised {type(error).__name__} in step {step}: {error}"
    )
