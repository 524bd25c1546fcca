"""A measured `AttentionLatency` as text for people."""

from __future__ import annotations

import numpy as np

from evenstep.tools.profile.attention_profile import AttentionProfile
from evenstep.tools.report.table import text_table

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
