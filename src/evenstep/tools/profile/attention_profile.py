"""Measured attention, and how well the latency model fitted to it predicts.

An `AttentionLatency` that was measured is shown to people as text.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.context_parallel.latency import AttentionLatency
from evenstep.tools.profile.timer import Timing
from evenstep.tools.report.table import text_table

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


_POOR = 0.25
_WIDE_SPREAD = 0.2


def attention_text(profile: AttentionProfile) -> str:
    """Tables of throughput, and notes on how far to trust them."""
    latency = profile.latency
    versions = ", ".join(f"{name} {number}" for name, number in latency.versions)
    title = f"attention on {latency.device}, kernel {latency.kernel}, {latency.dtype}, {versions}"
    heads = f"{latency.heads} heads of {latency.head_size}"
    if latency.kv_heads not in (None, latency.heads):
        heads += f", {latency.kv_heads} of keys and values"
    measured = {(m.queries, m.keys) for m in profile.measurements if m.outcome == "ok"}
    parts = [f"{title}\n{heads}; TFLOPs on tiles of {latency.tile}; - is not measured"]
    for name, table in (
        ("forward", latency.forward_tflops),
        ("backward", latency.backward_tflops),
    ):
        rows = [
            [
                f"{q:,}",
                *(_figure(v) if (q, k) in measured else "-" for k, v in zip(latency.keys, r)),
            ]
            for q, r in zip(latency.queries, table)
        ]
        header = [f"{name}: queries \\ keys", *(f"{k:,}" for k in latency.keys)]
        parts.append(text_table(header, rows))
    parts.append(
        f"a launch takes {1e6 * latency.forward_launch:,.0f} µs forward and "
        f"{1e6 * latency.backward_launch:,.0f} µs backward, once per {latency.launches}"
    )
    return "\n\n".join([*parts, "\n".join(_notes(profile))])


def _notes(profile: AttentionProfile) -> list[str]:
    errors = profile.held_out_errors
    if not errors:
        notes = ["no held-out shape was measured, so the error is unknown: give more --seconds"]
    else:
        text = (
            f"of {len(errors)} shapes that are not in the table, the error is "
            f"{np.median(errors):.1%} in the median and {errors[-1]:.1%} at worst"
        )
        notes = [text]
        if np.median(errors) > _POOR:
            notes.append(
                f"note: the median is over {_POOR:.0%}; measure again, with more --seconds"
            )
    for outcome in ("skipped", "out of memory"):
        shapes = [m for m in profile.measurements if m.outcome == outcome]
        if shapes:
            largest = max(shapes, key=lambda m: m.queries * m.keys)
            notes.append(
                f"note: {outcome}: {len(shapes)} of {len(profile.measurements)} shapes, up to "
                f"{largest.queries:,} queries of {largest.keys:,} keys; the model uses the "
                "entry with as many queries and the nearest keys"
            )
    timed = [m.both for m in profile.measurements if m.both]
    wide = sum(both.high - both.low > _WIDE_SPREAD * both.seconds for both in timed)
    if 2 * wide > len(timed):
        notes.append(
            f"note: times of {wide} of {len(timed)} shapes vary by more than {_WIDE_SPREAD:.0%}: "
            "is something else running?"
        )
    return notes


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
