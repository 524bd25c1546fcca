"""Measured attention, and how well the latency model fitted to it predicts."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.context_parallel.latency import AttentionLatency
from evenstep.tools.profile.timer import Timing

LEAST_COMPUTING = 0.1
"""Share of a call's time that counts as computing, at least: a smaller difference is noise."""


@dataclass(frozen=True, kw_only=True)
class FragmentMeasurement:
    """Equal fragments in one call of a kernel."""

    queries: int
    keys: int
    fragments: int = 1
    held_out: bool = False
    """Whether it is not in the table, and only compared with the prediction."""
    outcome: str = "ok"
    """"ok", "out of memory" or "skipped"."""
    forward: Timing | None = None
    """Forward pass of the call."""
    both: Timing | None = None
    """Forward and backward pass of the call."""

    @property
    def seconds(self) -> tuple[float, float] | None:
        """Seconds of forward and backward pass of the call; None if it was not measured."""
        if self.forward is None or self.both is None:
            return None
        forward = min(self.forward.seconds, (1 - LEAST_COMPUTING) * self.both.seconds)
        return forward, self.both.seconds - forward


@dataclass(frozen=True, kw_only=True)
class AttentionProfile:
    """A latency model, and the measurements that it was fitted to."""

    latency: AttentionLatency
    measurements: tuple[FragmentMeasurement, ...]

    def predicted(self, measured: FragmentMeasurement) -> float:
        """Seconds of the call, forward and backward, as the model predicts."""
        shape = (np.array([measured.queries]), np.array([measured.keys]))
        seconds = measured.fragments * float(self.latency(*shape)[0])
        if self.latency.launches == "rank":
            seconds += self.latency.forward_launch + self.latency.backward_launch
        return seconds

    def error(self, measured: FragmentMeasurement) -> float | None:
        """Error of the prediction, relative to the measurement: positive if it is too high."""
        if measured.both is None:
            return None
        return self.predicted(measured) / measured.both.seconds - 1

    @property
    def held_out_errors(self) -> list[float]:
        """Absolute errors of all shapes that are not in the table, ascending."""
        errors = [self.error(m) for m in self.measurements if m.held_out]
        return sorted(abs(error) for error in errors if error is not None)

    def as_dict(self) -> dict[str, Any]:
        """The content of the file other than the model."""
        errors = self.held_out_errors
        return {
            "held_out": len(errors),
            "median_error": float(np.median(errors)) if errors else None,
            "worst_error": errors[-1] if errors else None,
            "shapes": [
                {**asdict(m), "predicted": self.predicted(m), "error": self.error(m)}
                for m in self.measurements
            ],
        }

    def save(self, path: str | Path) -> None:
        """Writes a file for `evenstep.context_parallel.latency.load_latency`."""
        self.latency.save(path, measured=self.as_dict())
