"""What the demo found: figures of each run, a table with its meaning, pictures and JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array
from evenstep.strategy import LoadingPlan
from evenstep.tools.report.picture import new_figure, save_figure
from evenstep.tools.report.steps_plot import StepPanel
from evenstep.tools.report.table import text_table
from evenstep_demos.service.delivery import Checked, Records
from evenstep_demos.service.options import (
    CONTEXT,
    DATA,
    MICRO_BATCHES,
    RANKS,
    ServiceDemoOptions,
)
from evenstep_demos.service.sources import StoredSources

_COLUMNS = 96
_DRAWN, _EXPECTED, _FIRST = "#56b4e9", "#d55e00", "#999999"


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """The plans of a run, and what its ranks recorded."""

    plans: Sequence[LoadingPlan]
    records: Records


def figures(run: ServedRun) -> dict[str, Any]:
    """Figures of a run.

    Returns:
        Imbalance is the sum over steps of the largest, over the sum of the mean. Times are seconds:

        - ``planned``: by module, imbalance of the buckets' predicted cost.
        - ``measured``: by module, imbalance of the ranks' processor seconds.
        - ``slowest``: processor seconds of the slowest rank, summed over steps and modules: the
          time of the run on processors of its own, if ranks wait for each other after each module.
        - ``slowest_share``: fraction of all processor seconds that the slowest ranks took. It
          compares runs of the same samples even if the machine was slower in one of them.
        - ``wait_first``, ``wait_median``, ``wait_largest``: of the rank that waited longest, for
          the first step and for later ones.
        - ``first_loss``, ``last_loss``: mean over tokens of the first and last quarter of steps.
        - ``by_rank``: by module, [steps, ranks] processor seconds.
    """
    plans, ranks = run.plans, [run.records[rank] for rank in sorted(run.records)]

    waits, losses, counts, seconds = (  # [steps, ranks]
        np.array([[getattr(record, name) for record in rank] for rank in ranks]).T
        for name in ("wait", "loss", "supervised", "seconds")
    )
    by_rank = {
        module: np.array([[r.processor[module] for r in rank] for rank in ranks]).T
        for module in ranks[0][0].processor
    }
    planned = {
        module: np.array([_of(plan, module).cost_after.sum(axis=1) for plan in plans])
        for module in by_rank
    }
    waits, losses, tokens = waits.max(axis=1), losses.sum(axis=1), counts.sum(axis=1)
    later = waits[1:] if len(waits) > 1 else np.zeros(1)
    quarter = max(len(plans) // 4, 1)
    slowest = float(sum(each.max(axis=1).sum() for each in by_rank.values()))
    processor = float(sum(each.sum() for each in by_rank.values()))
    return {
        "steps": len(plans),
        "samples": sum(int(plan.assignment.placed.sum()) for plan in plans),
        "tokens": int(tokens.sum()),
        "planned": {module: largest_over_mean(costs) for module, costs in planned.items()},
        "measured": {module: largest_over_mean(costs) for module, costs in by_rank.items()},
        "slowest": slowest,
        "processor": processor,
        "slowest_share": slowest / processor,
        "wait_first": float(waits[0]),
        "wait_median": float(np.median(later)),
        "wait_largest": float(later.max()),
        "seconds": float(seconds.sum(axis=0).max()),
        "first_loss": float(losses[:quarter].sum() / tokens[:quarter].sum()),
        "last_loss": float(losses[-quarter:].sum() / tokens[-quarter:].sum()),
        "by_rank": {module: np.round(each, 5).tolist() for module, each in by_rank.items()},
    }


def _of(plan: LoadingPlan, module: str) -> LoadingPlan:
    return plan.subplans.get(module, plan)


def largest_over_mean(costs: Float64Array) -> float:
    """Imbalance of [steps, ranks] costs; 1.0 if all are zero."""
    mean = float(costs.mean(axis=1).sum())
    return float(costs.max(axis=1).sum()) / mean if mean else 1.0


@dataclass(frozen=True, kw_only=True)
class SourceDraws:
    """Samples drawn from each source, beside its weights; [sources] arrays."""

    sources: tuple[str, ...]
    drawn: npt.NDArray[np.int64]
    """Samples."""
    expected: Float64Array
    """Samples of each step times the weights of that step, summed."""
    first: Float64Array
    """Weights of the first step."""
    last: Float64Array
    """Weights of the last step."""

    @classmethod
    def of(cls, plans: Sequence[LoadingPlan]) -> SourceDraws:
        """The draws of a run, from the plans of all steps."""
        sources = plans[0].samples.sources
        weights = np.array([[p.weights.get(name, 0.0) for name in sources] for p in plans])
        weights = weights / weights.sum(axis=1, keepdims=True)
        drawn = np.array([plan.samples[plan.carried_in :].counts() for plan in plans])
        return cls(
            sources=sources,
            drawn=drawn.sum(axis=0),
            expected=(weights * drawn.sum(axis=1, keepdims=True)).sum(axis=0),
            first=weights[0],
            last=weights[-1],
        )

    @property
    def furthest(self) -> float:
        """The largest difference, over sources, between samples drawn and expected."""
        return float(np.abs(self.drawn - self.expected).max())

    def as_dict(self) -> dict[str, Any]:
        return {
            name: {
                "drawn": int(self.drawn[i]),
                "expected": round(float(self.expected[i]), 4),
                "first_weight": float(self.first[i]),
                "last_weight": float(self.last[i]),
            }
            for i, name in enumerate(self.sources)
        }


@dataclass(frozen=True, kw_only=True)
class ServiceDemoResult:
    """All runs, and what is needed to judge them."""

    options: ServiceDemoOptions
    stored: StoredSources
    runs: Mapping[str, ServedRun]
    """By name, in the order in which they were made."""
    checked: Mapping[str, Checked]
    pictures: Sequence[str]
    seconds: float
    """Seconds of the whole demo."""

    def figures(self) -> dict[str, dict[str, Any]]:
        """By run; see `figures`."""
        return {name: figures(run) for name, run in self.runs.items()}

    def draws(self) -> SourceDraws:
        """Draws of the last run."""
        return SourceDraws.of(list(self.runs.values())[-1].plans)

    def same_samples(self) -> bool:
        """Whether all runs trained on the same samples in each step."""
        placed = [
            [
                set(zip(table.source.tolist(), table.position.tolist()))
                for table in (plan.samples[plan.assignment.placed] for plan in run.plans)
            ]
            for run in self.runs.values()
        ]
        return all(each == placed[0] for each in placed)

    def as_dict(self) -> dict[str, Any]:
        """One object with all figures."""
        options, stored = self.options, self.stored
        return {
            "data": {
                "name": stored.name,
                "sources": len(stored.samples),
                "samples": sum(stored.samples.values()),
                **stored.facts,
            },
            "options": {
                "vision": options.vision,
                "live": options.live,
                "steps": options.steps,
                "samples_per_step": options.samples_per_step,
                "micro_batches": MICRO_BATCHES,
                "max_length": options.max_length,
                "max_tokens": options.max_tokens,
                "loaders": options.loaders,
                "seed": options.seed,
            },
            "mesh": {"DP": DATA, "CP": CONTEXT},
            "runs": self.figures(),
            "checked": {name: dict(vars(each)) for name, each in self.checked.items()},
            "same_samples": self.same_samples(),
            "sources": self.draws().as_dict(),
            "furthest_from_weights": self.draws().furthest,
            "pictures": list(self.pictures),
            "seconds": self.seconds,
        }

    def panels(self) -> list[StepPanel]:
        """The panels of the picture of ranks: one for each run and module."""
        return [
            StepPanel(
                title=f"{name}{f', {module}' * (len(found['by_rank']) > 1)}: imbalance "
                f"{found['measured'][module]:.2f} measured, {found['planned'][module]:.2f} planned",
                seconds=np.array(seconds),
            )
            for name, found in self.figures().items()
            for module, seconds in found["by_rank"].items()
        ]

    def table(self) -> str:
        """The table and its meaning, for people."""
        cells = [_cells(found) for found in self.figures().values()]
        rows = [[name, *(column[name] for column in cells)] for name in cells[0]]
        title = (
            f"{len(self.stored.samples):,} sources to {RANKS} ranks (DP={DATA} x CP={CONTEXT}), "
            f"{self.options.steps} steps of {self.options.samples_per_step} samples"
        )
        return f"{text_table(['', *self.runs], rows, title=title)}\n\n{self.meaning()}"

    def meaning(self) -> str:
        """What was measured, in sentences."""
        names = list(self.runs)
        shares = [found["slowest_share"] for found in self.figures().values()]
        checked = self.checked[names[-1]]
        text = []
        text.append(
            "Imbalance is the slowest rank over the mean, 1 at best: as the plan predicts it, and "
            "in processor seconds of forward and backward passes."
        )
        text.append(
            f"Processor seconds of the slowest ranks were {shares[0]:.0%} of all, "
            f"{names[0]}, and {shares[-1]:.0%}, {names[-1]}; {1 / RANKS:.0%} would be "
            "perfect. On processors of their own that is a step "
            f"{shares[0] / shares[-1]:.2f} times as fast."
        )
        if self.same_samples():
            text.append("All runs trained on the same samples in each step.")
        else:
            why = "weights followed the losses" if self.options.live else "some samples had to wait"
            text.append(f"Runs did not train on the same samples in each step: {why}.")
        text.append(
            f"Checked, for every run: each of {checked.samples:,} samples was delivered once, to "
            "the ranks that the mesh names and no other, and the shards of context-parallel ranks "
            f"make up the stored samples ({checked.tokens:,} tokens)."
        )
        text.append(
            f"No source was further than {self.draws().furthest:.1f} samples from what its weights "
            "ask for."
        )
        return textwrap.fill(" ".join(text), _COLUMNS)


def _cells(found: Mapping[str, Any]) -> dict[str, str]:
    """A column of the table."""
    cells = {}
    for module, planned in found["planned"].items():
        what = f" of the {module}" if len(found["planned"]) > 1 else ""
        cells[f"imbalance{what}, planned"] = f"{planned:.3f}"
        cells[f"imbalance{what}, measured"] = f"{found['measured'][module]:.3f}"
    return {
        **cells,
        "slowest rank, processor seconds": f"{found['slowest']:.1f}",
        "all ranks, processor seconds": f"{found['processor']:.1f}",
        "wait for a step, ms, median": f"{1000 * found['wait_median']:.0f}",
        "wait for a step, ms, longest": f"{1000 * found['wait_largest']:.0f}",
        "wait for the first step, ms": f"{1000 * found['wait_first']:.0f}",
        "samples": f"{found['samples']:,}",
        "supervised tokens": f"{found['tokens']:,}",
        "loss, first quarter of steps": f"{found['first_loss']:.3f}",
        "loss, last quarter of steps": f"{found['last_loss']:.3f}",
    }


def plot_sources(draws: SourceDraws, path: Path, *, title: str) -> None:
    """Draws the samples of each source beside its weights, and writes a PNG file.

    Raises:
        ImportError: matplotlib is not installed.
    """
    figure = new_figure(11, 6.2)
    above, below = figure.subplots(2, 1, sharex=True)
    order = np.argsort(-draws.expected, kind="stable")
    positions = np.arange(len(order))
    above.bar(positions, draws.drawn[order], width=0.9, color=_DRAWN, linewidth=0, label="drawn")
    above.step(positions, draws.expected[order], where="mid", color=_EXPECTED, linewidth=1.6)
    above.set_ylabel("samples drawn")
    below.step(
        *(positions, draws.last[order]),
        where="mid",
        color=_EXPECTED,
        linewidth=1.4,
        label="asked for by weights; weights of the last step",
    )
    below.step(
        *(positions, draws.first[order]),
        where="mid",
        color=_FIRST,
        linewidth=1.4,
        label="weights of the first step",
    )
    below.set_ylabel("weight")
    below.set_xlabel(f"{len(order):,} sources, by what their weights ask for")
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.01)
        axis.set_ylim(bottom=0)
    handles = [handle for axis in (above, below) for handle in axis.get_legend_handles_labels()[0]]
    save_figure(figure, path, handles=handles, title=title)
