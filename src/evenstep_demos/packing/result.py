"""What the demo found: as one JSON-able object, and as a table with its meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.plan.packing import DocumentCost
from evenstep.tools.report.packing_plot import PackingPanel
from evenstep.tools.report.table import text_table
from evenstep_demos.packing.compare import Packed
from evenstep_demos.packing.documents import DocumentLengths
from evenstep_demos.packing.options import STEPS, PackingDemoOptions

_COLUMNS = 96


@dataclass(frozen=True, kw_only=True)
class PackingDemoResult:
    """The documents, and all packers' figures."""

    options: PackingDemoOptions
    documents: DocumentLengths
    context: int
    packed: Sequence[Packed]
    """Original packing first."""
    picture: Path

    def as_dict(self) -> dict[str, Any]:
        """One object with all figures."""
        documents, options = self.documents, self.options
        lengths = documents.lengths
        return {
            "documents": {
                "name": documents.name,
                "token": documents.tokens,
                "found": documents.found,
                "unusable": documents.unusable,
                "packed": len(lengths),
                "tokens": int(lengths.sum()),
                "median": float(np.median(lengths)),
                "mean": float(lengths.mean()),
                "longest": int(lengths.max()),
                "over_context": int((lengths > self.context).sum()),
            },
            "context": self.context,
            "context_chosen": options.context is None,
            "micro_batches": options.micro_batches,
            "max_tokens": options.max_tokens,
            "queues": options.queues,
            "linear": options.cost.linear,
            "quadratic": options.cost.quadratic,
            "seed": options.seed,
            "packers": {packed.name: packed.as_dict() for packed in self.packed},
            "picture": str(self.picture),
        }

    def panels(self) -> list[PackingPanel]:
        """The panels of the picture."""
        names = {
            "original": "original packing (documents cut wherever a window ends)",
            "WLB": "WLB (by cost, outliers delayed)",
            "steady": "steady (by cost, even tokens per step)",
        }
        unit = float(self.packed[0].arriving.costs.mean())
        return [
            PackingPanel(
                title=f"{names.get(packed.name, packed.name)}: imbalance "
                f"{packed.arriving.imbalance:.2f}",
                costs=packed.arriving.costs / unit,
            )
            for packed in self.packed
        ]

    def table(self) -> str:
        """The table and its meaning, for people."""
        cells = [_cells(packed) for packed in self.packed]
        title = (
            f"{len(self.documents.lengths):,} documents in steps of "
            f"{self.options.micro_batches} micro-batches of {self.context:,} tokens"
        )
        header = ["", *(packed.name for packed in self.packed)]
        rows = [[name, *(column[name] for column in cells)] for name in cells[0]]
        table = text_table(header, rows, title=title)
        return f"{table}\n\n{self.meaning()}"

    def meaning(self) -> str:
        """How the documents were packed, in sentences."""
        original, wlb, steady = self.packed[0], self.packed[1], self.packed[-1]
        cost = self.options.cost
        text = []
        text.append(
            "Imbalance is the largest cost of a micro-batch over the mean, 1 at best; a document "
            f"of d tokens costs {_work(cost)}."
        )
        if self.options.context is None:
            enough = original.arriving.steps >= STEPS
            text.append(
                f"The context of {self.context:,} tokens is "
                + (
                    "the largest power of two up to 131,072 with which these documents last "
                    f"{STEPS} steps"
                    if enough
                    else f"the smallest that is tried: they do not last {STEPS} steps"
                )
                + "; choose another with --context."
            )
        over = int((self.documents.lengths > self.context).sum())
        split = (
            f"split the {over:,} longer than the context, into as few equal pieces as possible"
            if over
            else "cut none"
        )
        text.append(
            f"Original packing cut {original.documents_cut:,} documents, wherever a window ended; "
            f"WLB and steady {split}."
        )
        if wlb.thresholds:
            lengths = " and ".join(f"{length:,}" for length in wlb.thresholds)
            text.append(f"WLB's queues take documents from {lengths} tokens on.")
        else:
            text.append("WLB delays none: no length separates outliers from other documents here.")
        text.append("The last steps train on documents that still wait when all have arrived.")
        best = min(wlb.arriving.imbalance, steady.arriving.imbalance)
        if best >= original.arriving.imbalance:
            text.append("Nothing is gained: packed as they arrive, these documents are as even.")
        return textwrap.fill(" ".join(text), _COLUMNS)


def _work(cost: DocumentCost) -> str:
    attention = {0: "", 1: "d² + "}.get(cost.quadratic, f"{cost.quadratic:,} d² + ")
    return f"{attention}{cost.linear:,} d"


def _cells(packed: Packed) -> dict[str, str]:
    """A column of the table."""
    now, epoch = packed.arriving, packed.epoch
    return {
        "steps, and last ones": f"{now.steps:,} + {packed.last_steps}",
        "imbalance": f"{now.imbalance:.3f}",
        "imbalance by time": f"{now.imbalance_time_weighted:.3f}",
        "  with the last steps": f"{epoch.imbalance_time_weighted:.3f}",
        "1F1B over balanced, as given": f"{packed.makespan_given:.3f}",
        "1F1B over balanced, ordered": f"{packed.makespan:.3f}",
        "token delay, mean steps": f"{epoch.token_delay_mean:.2f}",
        "longest delay of a document": f"{epoch.token_delay_max:,}",
        "tokens per step, variation": f"{now.tokens_per_step_cv:.3f}",
        "longest micro-batch, tokens": f"{epoch.max_tokens:,}",
        "documents cut": f"{packed.documents_cut:,}",
        "planning a step, ms": f"{now.plan_ms:.2f}",
    }
