"""What the demo found: as one JSON-able object, and as a table with its meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evenstep.tools.report.steps_plot import StepPanel
from evenstep.tools.report.table import text_table
from evenstep_demos.service.delivery import Checked
from evenstep_demos.service.figures import ServiceRunFigures, SourceDraws
from evenstep_demos.service.options import CONTEXT, DATA, RANKS, ServiceDemoOptions
from evenstep_demos.service.stored import StoredSources

_COLUMNS = 96


@dataclass(frozen=True, kw_only=True)
class ServiceDemoResult:
    """All runs, and what is needed to judge them."""

    options: ServiceDemoOptions
    stored: StoredSources
    runs: Mapping[str, ServiceRunFigures]
    """By name, in the order in which they were made."""
    checked: Mapping[str, Checked]
    draws: SourceDraws
    """Draws of the last run."""
    same_samples: bool
    """Whether all runs trained on the same samples in each step."""
    pictures: Sequence[Path]
    seconds: float
    """Seconds of the whole demo."""

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
                "steps": options.step_count,
                "samples_per_step": options.sample_count,
                "micro_batches": options.micro_batches,
                "max_length": options.length_limit,
                "max_tokens": options.max_tokens,
                "loaders": options.loaders,
                "seed": options.seed,
            },
            "mesh": {"DP": DATA, "CP": CONTEXT},
            "runs": {name: run.as_dict() for name, run in self.runs.items()},
            "checked": {name: dict(vars(each)) for name, each in self.checked.items()},
            "same_samples": self.same_samples,
            "sources": self.draws.as_dict(),
            "furthest_from_weights": self.draws.furthest,
            "pictures": [str(path) for path in self.pictures],
            "seconds": self.seconds,
        }

    def panels(self) -> list[StepPanel]:
        """The panels of the picture of ranks: one for each run and module."""
        return [
            StepPanel(
                title=f"{name}{f', {module}' * (len(run.by_rank) > 1)}: imbalance "
                f"{run.measured[module]:.2f} measured, {run.planned[module]:.2f} planned",
                seconds=seconds,
            )
            for name, run in self.runs.items()
            for module, seconds in run.by_rank.items()
            if module in run.planned
        ]

    def table(self) -> str:
        """The table and its meaning, for people."""
        cells = [_cells(run) for run in self.runs.values()]
        rows = [[name, *(column[name] for column in cells)] for name in cells[0]]
        title = (
            f"{len(self.stored.samples):,} sources to {RANKS} ranks (DP={DATA} x CP={CONTEXT}), "
            f"{self.options.step_count} steps of {self.options.sample_count} samples"
        )
        return f"{text_table(['', *self.runs], rows, title=title)}\n\n{self.meaning()}"

    def meaning(self) -> str:
        """What was measured, in sentences."""
        names = list(self.runs)
        before, after = self.runs[names[0]], self.runs[names[-1]]
        checked = self.checked[names[-1]]
        text = []
        text.append(
            "Imbalance is the slowest rank over the mean, 1 at best: as the plan predicts it, and "
            "in processor seconds of forward and backward passes."
        )
        text.append(
            f"Processor seconds of the slowest ranks were {before.slowest_share:.0%} of all, "
            f"{names[0]}, and {after.slowest_share:.0%}, {names[-1]}; {1 / RANKS:.0%} would be "
            "perfect. On processors of their own that is a step "
            f"{before.slowest_share / after.slowest_share:.2f} times as fast."
        )
        if self.same_samples:
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
            f"No source was further than {self.draws.furthest:.1f} samples from what its weights "
            "ask for."
        )
        return textwrap.fill(" ".join(text), _COLUMNS)


def _cells(run: ServiceRunFigures) -> dict[str, str]:
    """A column of the table."""
    several = len(run.by_rank) > 1
    cells = {}
    for module in run.planned:
        what = f" of the {module}" if several else ""
        cells[f"imbalance{what}, planned"] = f"{run.planned[module]:.3f}"
        cells[f"imbalance{what}, measured"] = f"{run.measured[module]:.3f}"
    return {
        **cells,
        "slowest rank, processor seconds": f"{run.slowest:.1f}",
        "all ranks, processor seconds": f"{run.processor:.1f}",
        "wait for a step, ms, median": f"{1000 * run.wait_median:.0f}",
        "wait for a step, ms, longest": f"{1000 * run.wait_largest:.0f}",
        "wait for the first step, ms": f"{1000 * run.wait_first:.0f}",
        "samples": f"{run.samples:,}",
        "supervised tokens": f"{run.tokens:,}",
        "loss, first quarter of steps": f"{run.first_loss:.3f}",
        "loss, last quarter of steps": f"{run.last_loss:.3f}",
    }
