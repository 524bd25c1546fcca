"""The figures of a step log, as text by name, in the order in which they are shown."""

from __future__ import annotations

from evenstep.arrays import Float64Array
from evenstep.tools.report.run_record import RunRecord
from evenstep.tools.report.run_svg import NAMES


def run_figures(run: RunRecord) -> dict[str, str]:
    """Alike for every run, so that they can stand side by side, but for those of images."""
    seconds = run.wait + run.train
    figures = {
        "steps": f"{len(run):,}",
        "ranks": f"{run.ranks:,}",
        "to the first step": f"{max(run.first_waits, default=0.0):.2f} s",
        "time of a step": f"{_mean(seconds):.3f} s",
        "tokens per second": f"{run.tokens_per_second:,.0f} ({run.counted})",
    }
    for name, share in run.shares.items():
        figures[f"time: {NAMES[name]}"] = f"{share:.1%}"
    figures["imbalance"] = f"{_mean(run.imbalance):.3f}"
    if (run.vision_imbalance > 1).any():
        figures["imbalance, language model"] = f"{_mean(run.text_imbalance):.3f}"
        figures["imbalance, vision tower"] = f"{_mean(run.vision_imbalance):.3f}"
    if run.images.any():
        figures["images of a step"] = f"{_mean(run.images):,.1f}"
    figures["padding"] = f"{_mean(run.padding):.1%}"
    figures["composition"] = f"{run.composition:.2f}"
    return figures


def _mean(values: Float64Array) -> float:
    return float(values.mean()) if len(values) else 0.0
