"""Which steps of a candidate are measured, their throughput, and its standard error.

Throughput is a ratio of two sums, samples over seconds. Its standard error is taken from contiguous
slices of the steps and not from single ones, whose times are correlated: an allocator that
struggles, a neighbour on the machine or a run of long samples lasts for many steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.batch.composition import Composition
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.length_moments import LengthMoments

_SLICES = 10
_FEWEST_SLICES = 4  # with fewer, their spread says almost nothing


@dataclass(frozen=True, slots=True)
class StepTime:
    """One trained step of all ranks."""

    seconds: float
    samples: int
    tokens: int
    padded_tokens: int
    moments: LengthMoments
    """Of its samples' lengths, of shape []."""
    ends_update: bool = True


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Figures of the measured steps, all ranks together."""

    throughput: float
    """Emitted samples per second."""
    standard_error: float | None
    """Standard error of the throughput, from the spread over slices of the steps; None if there are
    too few steps."""
    tokens_per_second: float
    """Real tokens."""
    padding: float
    composition: float
    """See `evenstep.Composition`."""
    steps: int
    samples: int
    tokens: int
    seconds: float
    step_seconds: float
    """Mean time of a step."""
    step_variation: float
    """Standard deviation of the step times over their mean."""

    @property
    def relative_error(self) -> float | None:
        """The standard error as a fraction of the throughput."""
        return None if self.standard_error is None else self.standard_error / self.throughput


def measure(steps: Sequence[StepTime]) -> Measurement:
    """The figures of `steps`.

    Args:
        steps: at least one, in the order in which they were trained.

    Raises:
        ConfigurationError: there are no steps, or they took no time.
    """
    seconds = np.array([step.seconds for step in steps], np.float64)
    samples = np.array([step.samples for step in steps], np.float64)
    total = float(seconds.sum())
    if not total > 0:
        raise ConfigurationError(f"{len(steps)} steps in {total} seconds give no throughput")
    tokens = sum(step.tokens for step in steps)
    padded = sum(step.padded_tokens for step in steps)
    mean = float(seconds.mean())
    composition = Composition()
    for step in steps:
        composition.add_moments(step.moments, ends_update=step.ends_update)
    return Measurement(
        throughput=float(samples.sum()) / total,
        standard_error=_standard_error(samples, seconds),
        tokens_per_second=tokens / total,
        padding=1.0 - tokens / padded if padded else 0.0,
        composition=composition.value,
        steps=len(steps),
        samples=int(samples.sum()),
        tokens=tokens,
        seconds=total,
        step_seconds=mean,
        step_variation=float(seconds.std()) / mean,
    )


def _standard_error(samples: np.ndarray, seconds: np.ndarray) -> float | None:
    """Standard error of sum(samples) / sum(seconds), to first order, from slices of equally many
    steps."""
    slices = min(_SLICES, len(samples) // 2)
    if slices < _FEWEST_SLICES:
        return None
    rate = samples.sum() / seconds.sum()
    left = samples - rate * seconds  # [steps], sums to zero
    residuals = np.array([part.sum() for part in np.array_split(left, slices)])  # [slices]
    variance = slices / (slices - 1) * float((residuals**2).sum())
    return float(np.sqrt(variance) / seconds.sum())


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Which steps of a candidate are measured: those after `warmup`, until `steps` of them or
    `seconds` have passed.

    They end with a step: a candidate that hangs among them never completes them, and does not count
    as fast.
    """

    seconds: float = 60.0
    """Time to measure, at least; ignored if `steps` is given."""
    steps: int | None = None
    """Steps to measure, instead of `seconds`."""
    warmup: int = 20
    """Steps that are trained first, and not measured."""

    def __post_init__(self) -> None:
        check_at_least(0, warmup=self.warmup)
        check_at_least(1, steps=self.steps)
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ConfigurationError(f"seconds={self.seconds} must be positive and finite")

    def select(self, steps: Sequence[StepTime]) -> tuple[Sequence[StepTime], bool]:
        """The measured steps of all steps so far, and whether they are complete."""
        measured = steps[self.warmup :]
        if self.steps is not None:
            return measured[: self.steps], len(measured) >= self.steps
        passed = 0.0
        for index, step in enumerate(measured):
            passed += step.seconds
            if passed >= self.seconds:
                return measured[: index + 1], True
        return measured, False

    def progress(self, steps: Sequence[StepTime]) -> tuple[int, int]:
        """(done, total): steps, or tenths of seconds."""
        measured, _ = self.select(steps)
        if self.steps is not None:
            return len(measured), self.steps
        return int(10 * sum(step.seconds for step in measured)), math.ceil(10 * self.seconds)
