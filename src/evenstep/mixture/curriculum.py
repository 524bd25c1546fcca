"""`LengthCurriculum`: no sample is longer than a limit that grows with the steps.

A sample that is too long waits, and comes before all later samples of its source once the limit
admits it. Nothing is lost: samples that wait are part of the state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_given


@dataclass(frozen=True)
class LengthCurriculum:
    """``LengthCurriculum({0: 512, 10_000: 4096, 10_001: None})``: grows linearly from 512 tokens to
    4,096, then has no limit."""

    limits: Mapping[int, int | None]
    """By step, from 0, the tokens of the longest sample; never falling. Only the last one may
    be None: no limit."""
    linear: bool = True
    """Grow in equal parts from each step named to the next; False jumps at the steps named."""
    max_waiting: int = 100_000
    """Samples of one source that may wait, in memory and in the state."""

    def __post_init__(self) -> None:
        check_given(max_waiting=self.max_waiting)
        check_at_least(1, max_waiting=self.max_waiting)
        if not isinstance(self.limits, Mapping) or 0 not in self.limits:
            raise ConfigurationError(
                f"limits={self.limits!r} must be a mapping from steps to lengths that has step 0"
            )
        for step, limit in self.limits.items():
            check_at_least(0, step=step)
            check_at_least(1, **{f"limit from step {step}": limit})
        ordered = {step: self.limits[step] for step in sorted(self.limits)}
        object.__setattr__(self, "limits", ordered)
        for (_, low), (step, high) in pairwise(ordered.items()):
            if low is None or (high is not None and high < low):
                raise ConfigurationError(
                    f"the limit from step {step:,} is {high}, and before it was {low}; limits "
                    "never fall, and None is the last"
                )

    def limit(self, step: int) -> int | None:
        """Tokens of the longest sample admitted in a step; None means no limit."""
        before = max(at for at in self.limits if at <= step)
        low = self.limits[before]
        after = min((at for at in self.limits if at > step), default=None)
        high = None if after is None else self.limits[after]
        if not self.linear or low is None or high is None or after is None:
            return low
        return low + (high - low) * (step - before) // (after - before)
