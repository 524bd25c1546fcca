"""Selects the steps of a candidate that are measured.

They are those after `warmup`, until `steps` of them or `seconds` have passed. They end with a step:
a candidate that hangs among them never completes them, and does not count as fast.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.tools.tune.measurement import StepTime


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    """Numbers that decide which steps are measured."""

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
        """The measured ones of all steps so far, and whether they are complete."""
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
