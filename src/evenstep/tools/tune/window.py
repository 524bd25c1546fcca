"""Which of a candidate's steps are measured.

Those after `warmup`, until `steps` of them or `seconds` have passed. A window ends with a step: a
candidate that hangs in it never closes it, instead of counting as one that was fast before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.tools.tune.measurement import StepTime

__all__ = ["MeasuredSteps"]


@dataclass(frozen=True, kw_only=True)
class MeasuredSteps:
    seconds: float = 60.0
    """Measured at least this long; not looked at where `steps` is given."""
    steps: int | None = None
    """Measured steps, instead of `seconds`."""
    warmup: int = 20
    """Steps that are trained first and not measured."""

    def __post_init__(self) -> None:
        check_at_least(0, warmup=self.warmup)
        check_at_least(1, steps=self.steps)
        if not (self.seconds > 0 and math.isfinite(self.seconds)):
            raise ConfigurationError(f"seconds={self.seconds} must be positive and finite")

    def cut(self, steps: Sequence[StepTime]) -> tuple[Sequence[StepTime], bool]:
        """The steps to measure, of all since the beginning, and whether the window is closed."""
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
        measured, _ = self.cut(steps)
        if self.steps is not None:
            return len(measured), self.steps
        return int(10 * sum(step.seconds for step in measured)), math.ceil(10 * self.seconds)
