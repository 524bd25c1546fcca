"""What the demo found: as one JSON-able object, and as a table with a verdict in words.

The verdict states only what was measured, and what limits it: other programs on the machine make
times wrong, and losses after short epochs of a few seeds differ by chance.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.tools.report.steps_plot import StepPanel
from evenstep.tools.report.table import text_table
from evenstep_demos.text.budget import Choice
from evenstep_demos.text.figures import TextRunFigures
from evenstep_demos.text.interval import PairedDifference
from evenstep_demos.text.options import TrainingOptions
from evenstep_demos.text.prepared_text import describe_lengths

_COLUMNS = 88
_PROCESSOR_SHARE = 0.9  # below it, the verdict warns of other programs
_POLICY = "even"


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """A run, made several times, each with initial weights and an order of its own."""

    whole: TextRunFigures
    """One after the other; the held-out loss is their mean."""
    first: TextRunFigures
    held_out_losses: tuple[float, ...]
    """[repeats]"""


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Both runs, and what is needed to judge them."""

    options: TrainingOptions
    samples: str
    """What the samples are called."""
    corpus: Mapping[str, Any]
    """The source of the samples, and how many of them were used."""
    lengths: npt.NDArray[np.int64]
    """[samples] tokens of the samples that were trained on."""
    choice: Choice
    seconds_per_token: float
    initial_loss: float
    """Held-out loss before training, the same for both runs of the first repeat."""
    fixed: Repeats
    even: Repeats
    picture: Path
    seconds: float
    """Seconds of the whole demo."""

    @property
    def speedup(self) -> float:
        """Real tokens per second, evenstep's over the fixed batches'."""
        return self.even.whole.tokens_per_second / self.fixed.whole.tokens_per_second

    @property
    def processor_speedup(self) -> float:
        """The fixed batches' processor seconds over evenstep's, for the same samples."""
        return self.fixed.whole.processor_seconds / self.even.whole.processor_seconds

    @property
    def loss_difference(self) -> PairedDifference:
        """Held-out loss of evenstep minus that of fixed batches, repeat by repeat."""
        pairs = zip(self.even.held_out_losses, self.fixed.held_out_losses)
        return PairedDifference.of([even - fixed for even, fixed in pairs])

    def as_dict(self) -> dict[str, Any]:
        """One object with all figures."""
        options = {k: v for k, v in asdict(self.options).items() if not isinstance(v, Path)}
        return {
            "corpus": dict(self.corpus),
            "lengths": describe_lengths(self.lengths),
            "options": {
                **options,
                "policy": _POLICY,
                "batch_size": self.choice.batch_size,
                "fitted_max_tokens": self.choice.max_tokens,
                "samples": self.choice.samples,
            },
            "seconds_per_token": self.seconds_per_token,
            "predicted": {run: dict(values) for run, values in self.choice.predicted.items()},
            "initial_loss": self.initial_loss,
            "fixed": self.fixed.whole.as_dict(),
            "evenstep": self.even.whole.as_dict(),
            "held_out_losses": {
                "fixed": list(self.fixed.held_out_losses),
                "evenstep": list(self.even.held_out_losses),
            },
            "loss_difference": asdict(self.loss_difference),
            "speedup": self.speedup,
            "processor_speedup": self.processor_speedup,
            "picture": str(self.picture),
            "seconds": self.seconds,
        }

    def panels(self) -> list[StepPanel]:
        """The two panels of the picture: the first repeat."""
        names = (f"fixed batches of {self.choice.batch_size}", "evenstep.Even")
        return [
            StepPanel(
                title=f"{name}: {run.tokens_per_second:,.0f} real tokens/s, "
                f"{run.padding:.1%} padding, imbalance {run.imbalance:.2f}",
                seconds=run.compute_seconds,
            )
            for name, run in zip(names, (self.fixed.first, self.even.first))
        ]

    def table(self) -> str:
        """The table and its meaning, for people."""
        fixed, even = self.fixed.whole, self.even.whole
        time_ratio, loss = even.seconds / fixed.seconds, self.loss_difference
        processor_ratio = 1 / self.processor_speedup
        rows = [
            ("real tokens per second", "tokens_per_second", ",.0f", f"x {self.speedup:.2f}"),
            ("seconds, all repeats", "seconds", ".1f", f"x {time_ratio:.2f}"),
            (
                "processor seconds",
                "processor_seconds",
                ".1f",
                f"x {processor_ratio:.2f}",
            ),
            ("seconds to the first batch", "first_wait", ".2f", ""),
            ("padding", "padding", ".1%", ""),
            ("imbalance of ranks", "imbalance", ".3f", ""),
            ("imbalance in padded tokens", "imbalance_in_tokens", ".3f", ""),
            ("wait for data", "wait", ".1%", ""),
            ("steps, all repeats", "steps", ",d", ""),
            ("samples per step", "samples_per_step", ".2f", ""),
            ("most padded tokens in a batch", "most_padded_tokens", ",d", ""),
            (
                "held-out loss",
                "held_out_loss",
                ".3f",
                f"{loss.mean:+.3f} ± {loss.standard_error:.3f}",
            ),
        ]
        cells = [
            (name, f"{getattr(fixed, field):{form}}", f"{getattr(even, field):{form}}", change)
            for name, field, form, change in rows
        ]
        own = [" + ".join(f"{s:.1f}" for s in run.rank_seconds) for run in (fixed, even)]
        cells.insert(2, ("compute seconds of each rank", own[0], own[1], ""))
        title = (
            f"{self.choice.samples:,} {self.samples}, {int(self.lengths.sum()):,} tokens, each "
            f"once in each of {self.options.repeats} repeats, on {self.options.world_size} ranks"
        )
        table = text_table(["", "fixed batches", "evenstep.Even", "change"], cells, title=title)
        return f"{table}\n\n{self.verdict()}"

    def verdict(self) -> str:
        """What was measured, in sentences."""
        choice, speedup = self.choice, self.speedup
        text = (
            f"Compared on the same {self.samples}: fixed batches of {choice.batch_size} samples, "
            f"and evenstep's default policy, Even(max_tokens={choice.max_tokens:,}), the budget "
            f"with which both take about as many steps, {self.options.accumulate} to an update. In "
            f"real tokens per second evenstep was {speedup:.2f} times as fast, and "
            f"{self.processor_speedup:.2f} times by the processor time of the slowest ranks. "
        )
        share = min(self.fixed.whole.processor_share, self.even.whole.processor_share)
        if share < _PROCESSOR_SHARE:
            text += (
                "But other programs ran on this machine: in one of the runs a rank had a processor "
                f"for only {share:.0%} of the time it computed, so rely on processor time alone. "
            )
        if self.processor_speedup <= 1.0:
            text += "So it was no faster here; where lengths vary little, there is little to gain. "
        text += (
            "Imbalance is the processor time of the slowest rank over the mean, summed over steps; "
            "at 1 no rank waits for another. "
        )
        return f"{textwrap.fill(text, _COLUMNS)}\n\n{self._losses()}"

    def _losses(self) -> str:
        loss, repeats = self.loss_difference, self.options.repeats
        mean = f"{abs(loss.mean):.3f} {'higher' if loss.mean > 0 else 'lower'}"
        text = (
            f"Held-out loss, {self.initial_loss:.3f} before training, fell to "
            f"{self.fixed.whole.held_out_loss:.3f} with fixed batches and to "
            f"{self.even.whole.held_out_loss:.3f} with evenstep, means of {repeats} repeats, each "
            f"with its own initial weights and order. Evenstep's is {mean}, with a standard error "
            f"of {loss.standard_error:.3f}; the 95% interval of the difference is {loss.low:+.3f} "
            f"to {loss.high:+.3f}. "
        )
        if loss.within_chance:
            text += "The interval has 0 in it, so these runs do not tell which is lower. "
        else:
            text += "The interval has no 0 in it: this is more than chance does between repeats. "
        text += "docs/learning.md has longer runs of more seeds, which say more."
        return textwrap.fill(text, _COLUMNS)
