"""A figure, and how far the random draw of samples may have moved it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Range:
    """``low <= value <= high``: the 5 to 95 % range of the value over other draws."""

    value: float
    low: float
    high: float

    @classmethod
    def exact(cls, value: float) -> Range:
        return cls(value, value, value)

    def as_dict(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def spread(sampled: int, total: int | None) -> float:
    """Factor on a bootstrap's deviations when `sampled` of `total` samples were drawn without
    replacement: 0 if all were drawn, 1 if `total` is unknown or much larger."""
    if total is None:
        return 1.0
    return math.sqrt(max(0.0, 1 - sampled / total))


def around(
    value: float,
    low_deviation: float,
    high_deviation: float,
    *,
    floor: float = -math.inf,
    ceiling: float = math.inf,
) -> Range:
    """`value` with a negative and a positive deviation, clipped to the figure's limits."""
    return Range(
        value,
        min(value, max(floor, value + low_deviation)),
        max(value, min(ceiling, value + high_deviation)),
    )


def percentiles(
    value: float, replicates: npt.NDArray[np.float64], scale: float, *, floor: float = -math.inf
) -> Range:
    """`value` with the 5th and 95th percentile of the bootstrap's deviations from it."""
    low, high = np.quantile(replicates - value, [0.05, 0.95]) * scale
    return around(value, min(0.0, float(low)), max(0.0, float(high)), floor=floor)
