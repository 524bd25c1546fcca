"""A picture of held-out losses above those of random batches: a panel for each corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.learning.plans import BASE
from benchmarks.learning.summary import CorpusResult, interval
from evenstep.tools.report.picture import new_figure

# Colour-blind safe; the others are grey.
_SHADES = {"even": "#0072b2", "even-packed": "#009e73", "odb": "#d55e00", "pool-sort": "#e69f00"}
_GREY = "#707070"


def plot(results: Sequence[CorpusResult], path: Path) -> None:
    """Writes a PNG file: of each policy the seeds as dots, and mean and standard error as a bar."""
    policies = [policy for policy in results[0].runs if policy != BASE]
    figure = new_figure(1 + 5.5 * len(results), 1.4 + 0.45 * len(policies))
    axes = figure.subplots(1, len(results), squeeze=False)[0]
    for axis, result in zip(axes, results):
        _draw(axis, result, policies)
    figure.suptitle(
        "Held-out loss per token above random batches", x=0.01, ha="left", fontweight="bold"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")


def _draw(axis: Any, result: CorpusResult, policies: Sequence[str]) -> None:
    for place, policy in enumerate(reversed(policies)):
        values = result.above_fixed(policy)
        found, shade = interval(values), _SHADES.get(policy, _GREY)
        axis.plot(values, [place] * len(values), "o", color=shade, alpha=0.3, markersize=4)
        axis.errorbar(
            found["mean"],
            place,
            xerr=found["standard_error"],
            color=shade,
            marker="o",
            markersize=7,
            capsize=4,
            linewidth=2.4,
        )
    axis.axvline(0, color="#404040", linewidth=1)
    names = [
        f"{policy}\ncomposition {result.mean(policy, 'composition'):.2f}"
        for policy in reversed(policies)
    ]
    axis.set_yticks(range(len(policies)), names, fontsize=9)
    axis.margins(y=0.12)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color="#e6e6e6")
    axis.set_axisbelow(True)
    axis.set_title(f"{result.name}: mean and standard error over seeds", loc="left")
