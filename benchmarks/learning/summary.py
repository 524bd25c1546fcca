"""What the runs of a corpus say, as a table and as a picture: losses against those of fixed batches
on the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.experiment import Run
from benchmarks.learning.plans import BASE
from benchmarks.lib.report import Table
from evenstep.arrays import Float64Array
from evenstep.tools.report.picture import new_figure

# Colour-blind safe; the others are grey.
_SHADES = {"even": "#0072b2", "even-packed": "#009e73", "odb": "#d55e00", "pool-sort": "#e69f00"}
_GREY = "#707070"
_HEADER = ["policy", "held-out loss", "above fixed", "composition", "cosine", "imbalance", "steps"]


@dataclass(kw_only=True)
class CorpusResult:
    """All runs of one corpus."""

    name: str
    runs: dict[str, dict[int, Run]] = field(default_factory=dict)
    """Policy -> seed -> run."""
    cosines: dict[str, float] = field(default_factory=dict)

    def above_fixed(self, policy: str) -> Float64Array:
        """[seeds] held-out loss minus that of fixed batches of the same seed."""
        return np.array([run.loss - self.runs[BASE][seed].loss for seed, run in self._of(policy)])

    def mean(self, policy: str, figure: str) -> float:
        return float(np.mean([getattr(run, figure) for _, run in self._of(policy)]))

    def _of(self, policy: str) -> list[tuple[int, Run]]:
        return sorted(self.runs[policy].items())


def interval(values: Float64Array) -> dict[str, float]:
    """Mean and its standard error."""
    return {
        "mean": float(values.mean()),
        "standard_error": float(values.std(ddof=1) / len(values) ** 0.5),
    }


def table_of(result: CorpusResult) -> Table:
    rows = []
    for policy, runs in result.runs.items():
        steps = [run.steps for run in runs.values()]
        above = interval(result.above_fixed(policy))
        rows.append(
            [
                policy,
                f"{result.mean(policy, 'loss'):.3f}",
                "" if policy == BASE else f"{above['mean']:+.3f} ± {above['standard_error']:.3f}",
                f"{result.mean(policy, 'composition'):.2f}",
                f"{result.cosines[policy]:.3f}",
                f"{result.mean(policy, 'imbalance'):.3f}",
                f"{min(steps)}-{max(steps)}" if min(steps) < max(steps) else f"{steps[0]}",
            ]
        )
    return Table(_HEADER, rows, f"{result.name}, {len(result.runs[BASE])} seeds")


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
