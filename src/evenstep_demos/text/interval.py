"""A difference seen in a few pairs of runs, and how far chance may move it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t at 97.5 %, of 1 degree of freedom and more."""
_NORMAL_95 = 1.96


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The mean of differences, each of two runs that differ in one thing only."""

    mean: float
    standard_error: float
    low: float
    """Lower end of the 95 % confidence interval, if the differences are normally distributed."""
    high: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> PairedDifference:
        """The interval of two or more differences."""
        values = np.asarray(differences, np.float64)
        mean, error = float(values.mean()), float(values.std(ddof=1) / len(values) ** 0.5)
        degrees = len(values) - 1
        t = _T_95[degrees - 1] if degrees <= len(_T_95) else _NORMAL_95
        return cls(mean=mean, standard_error=error, low=mean - t * error, high=mean + t * error)

    @property
    def within_chance(self) -> bool:
        """Whether the interval contains 0."""
        return self.low <= 0 <= self.high
