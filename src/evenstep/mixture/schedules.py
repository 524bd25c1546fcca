"""Schedules: the mixing weights of sources by step.

Weights are numbers from 0 by name of source, in any unit, of which some are positive. A source that
a schedule does not name has weight 0. A step is one step of the optimizer, whatever its
micro-batches. Any object with the methods of `Schedule` is one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least, check_given

Weights = Mapping[str, float]


def check_weights(given: Any, of: str) -> dict[str, float]:
    """A copy with plain numbers.

    Args:
        of: their name in errors, such as ``weights of step 7``.

    Raises:
        ConfigurationError: not a mapping from names to finite numbers from 0, or no positive one.
    """
    if not isinstance(given, Mapping):
        raise ConfigurationError(
            f"{of} are {given!r}; give a mapping from names of sources to numbers, such as "
            '{"code": 0.3, "web": 0.7}'
        )
    weights = {}
    for name, value in given.items():
        if not isinstance(name, str):
            raise ConfigurationError(f"{of} have the key {name!r}; keys are names of sources")
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise ConfigurationError(f"{of}: {name}={value!r} must be a number from 0")
        number = float(value)
        if not math.isfinite(number) or number < 0:
            raise ConfigurationError(
                f"{of}: {name}={number} must be a finite number from 0; 0 draws nothing from it"
            )
        weights[name] = number
    try:
        total = math.fsum(weights.values())
    except OverflowError:
        total = math.inf
    if not total > 0 or not math.isfinite(total):
        raise ConfigurationError(
            f"{of} sum to {total}, so nothing can be drawn; give at least one source a "
            "positive weight, and all of them a finite sum"
        )
    return weights


def check_names(names: Iterable[str], sources: Sequence[str], of: str) -> None:
    """
    Raises:
        ConfigurationError: a name that no source has.
    """
    known = set(sources)
    unknown = [name for name in names if name not in known]
    if unknown:
        shown = ", ".join(list(sources)[:20]) + (", ..." if len(sources) > 20 else "")
        raise ConfigurationError(
            f"{of} name {', '.join(map(repr, unknown[:5]))}, which is not a source; the sources "
            f"are {shown}"
        )


def normalised(weights: Weights) -> dict[str, float]:
    """Weights with a sum of 1."""
    total = math.fsum(weights.values())
    return {name: value / total for name, value in weights.items()}


def in_order(weights: Weights, sources: Sequence[str]) -> Float64Array:
    """[sources] weights with a sum of 1; 0 for a source that is not named."""
    values = [weights.get(name, 0.0) for name in sources]
    return np.array(values, np.float64) / math.fsum(values)


@dataclass(frozen=True)
class Past:
    """What a schedule may base its weights on, besides the step."""

    weights: Weights | None = None
    """Weights of the step before; None before the first."""
    signals: Mapping[str, Any] = field(default_factory=dict)
    """What trainers reported last, by name, such as ``loss_by_source``."""


@runtime_checkable
class Schedule(Protocol):
    """Weights by step."""

    def weights(self, step: int, past: Past) -> Weights: ...

    def peaks(self) -> Mapping[str, float] | None:
        """By name of every source, the largest weight that it ever has; None if that is not known
        in advance."""
        ...


@dataclass(frozen=True)
class Constant:
    """The same weights in every step."""

    mixture: Weights

    def __post_init__(self) -> None:
        object.__setattr__(self, "mixture", check_weights(self.mixture, "weights of Constant"))

    def weights(self, step: int, past: Past) -> Weights:
        return self.mixture

    def peaks(self) -> Mapping[str, float]:
        return self.mixture


@dataclass(frozen=True)
class Staged:
    """Weights that hold from a step on until the next stage.

    ``Staged({0: {"web": 1}, 10_000: {"web": 0.6, "code": 0.4}})``. A stage may be a schedule.
    """

    stages: Mapping[int, Weights | Schedule]

    def __post_init__(self) -> None:
        if not isinstance(self.stages, Mapping) or 0 not in self.stages:
            raise ConfigurationError(
                f"stages={self.stages!r} must be a mapping from steps to weights that has step 0"
            )
        checked = {}
        for step in self.stages:
            check_at_least(0, **{"step of a stage": step})
        for step in sorted(self.stages):
            stage = self.stages[step]
            if isinstance(stage, Mapping):
                stage = Constant(check_weights(stage, f"weights of the stage from step {step:,}"))
            elif isinstance(stage, FeedbackSchedule):
                raise ConfigurationError(
                    f"the stage from step {step:,} is a FeedbackSchedule, which builds on its own "
                    "last weights; make one FeedbackSchedule whose function knows the step"
                )
            checked[step] = as_schedule(stage)
        object.__setattr__(self, "stages", checked)

    def weights(self, step: int, past: Past) -> Weights:
        begin = max(at for at in self.stages if at <= step)
        stage = self.stages[begin]
        assert isinstance(stage, Schedule)
        return stage.weights(step, past)

    def peaks(self) -> Mapping[str, float] | None:
        found: dict[str, float] = {}
        for stage in self.stages.values():
            assert isinstance(stage, Schedule)
            peaks = stage.peaks()
            if peaks is None:
                return None
            _raise_to(found, peaks)
        return found


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Linear interpolation from one mixture to another, of normalised weights."""

    start: Weights
    """Until step `begin`."""
    end: Weights
    """From step ``begin + steps`` on."""
    steps: int
    begin: int = 0

    def __post_init__(self) -> None:
        check_given(steps=self.steps, begin=self.begin)
        check_at_least(1, steps=self.steps)
        check_at_least(0, begin=self.begin)
        for name in ("start", "end"):
            weights = normalised(check_weights(getattr(self, name), f"weights of WarmUp's {name}"))
            object.__setattr__(self, name, weights)

    def weights(self, step: int, past: Past) -> Weights:
        way = min(max((step - self.begin) / self.steps, 0.0), 1.0)
        return {
            name: (1 - way) * self.start.get(name, 0.0) + way * self.end.get(name, 0.0)
            for name in self.peaks()
        }

    def peaks(self) -> Mapping[str, float]:
        found = dict(self.start)
        _raise_to(found, self.end)
        return found


@dataclass(frozen=True)
class PerStep:
    """Weights that a function of the step gives. It must give the same ones at each call."""

    function: Callable[[int], Weights]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigurationError(
                f"function={self.function!r} must be a function from a step to weights"
            )

    def weights(self, step: int, past: Past) -> Weights:
        return self.function(step)

    def peaks(self) -> None:
        return None


@dataclass(frozen=True, kw_only=True)
class FeedbackSchedule:
    """Weights that follow what trainers report.

    They are recorded in each step, so a replay calls neither the function nor the trainers.
    """

    initial: Weights
    """Until the first report."""
    function: Callable[[Weights, Mapping[str, Any]], Weights]
    """From the last weights and the signals, by the names under which they were reported."""
    every: int = 1
    """Steps from one call of the function to the next."""

    def __post_init__(self) -> None:
        check_given(every=self.every)
        check_at_least(1, every=self.every)
        object.__setattr__(
            self, "initial", check_weights(self.initial, "initial weights of FeedbackSchedule")
        )
        if not callable(self.function):
            raise ConfigurationError(
                f"function={self.function!r} must be a function from the last weights and the "
                "signals to weights"
            )

    def weights(self, step: int, past: Past) -> Weights:
        last = self.initial if past.weights is None else past.weights
        if not past.signals or step % self.every:
            return last
        return self.function(last, past.signals)

    def peaks(self) -> None:
        return None


@dataclass(frozen=True)
class ByHand:
    """What somebody has set in a running job, over the weights of its schedule."""

    mixture: Weights | None = None
    """Weights instead of the schedule's; None are the schedule's."""
    dropped: frozenset[str] = frozenset()
    """Sources of which nothing is drawn."""

    def over(self, schedule: Schedule) -> Schedule:
        """The schedule with that."""
        if self.mixture is not None:
            schedule = Constant(self.mixture)
        return _Without(schedule, self.dropped) if self.dropped else schedule


@dataclass(frozen=True)
class _Without:
    schedule: Schedule
    dropped: frozenset[str]

    def weights(self, step: int, past: Past) -> Weights:
        return self._left(self.schedule.weights(step, past))

    def peaks(self) -> Mapping[str, float] | None:
        peaks = self.schedule.peaks()
        return None if peaks is None else self._left(peaks)

    def _left(self, weights: Weights) -> dict[str, float]:
        return {name: value for name, value in weights.items() if name not in self.dropped}


def as_schedule(given: Any) -> Schedule:
    """A mapping is `Constant`, a function of the step is `PerStep`.

    Raises:
        ConfigurationError: it is not a schedule.
    """
    if isinstance(given, Mapping):
        return Constant(given)
    if isinstance(given, Schedule) and not isinstance(given, type):
        return given
    if callable(given) and not isinstance(given, type):
        return PerStep(given)
    raise ConfigurationError(
        f"schedule={given!r} must be a schedule, a mapping from names of sources to weights, or a "
        "function from a step to such a mapping"
    )


def _raise_to(found: dict[str, float], peaks: Mapping[str, float]) -> None:
    for name, value in peaks.items():
        found[name] = max(found.get(name, 0.0), value)
