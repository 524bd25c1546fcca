"""What the demo found: as one JSON-able object, and as a table with its meaning."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from evenstep.plan.packing import DocumentCost
from evenstep.tools.report.packing_plot import PackingPanel, plot_packing
from evenstep.tools.report.table import text_table
from evenstep_demos.packing.compare import Packed, compare
from evenstep_demos.packing.documents import DocumentLengths

STEPS = 100
"""Steps that the documents should last for: in fewer, the documents that wait in queues at the end
count for much."""

_CONTEXTS = tuple(1 << power for power in range(17, 7, -1))  # 131,072 down to 256
_COLUMNS = 96


def suitable_context(tokens: int, micro_batches: int) -> int:
    """The largest power of two from 256 to 131,072 with which `tokens` last for `STEPS` steps, or
    256 if none does."""
    for context in _CONTEXTS:
        if tokens >= STEPS * micro_batches * context:
            return context
    return _CONTEXTS[-1]


def pack_documents(
    documents: DocumentLengths,
    *,
    context: int | None,
    micro_batches: int,
    max_tokens: int | None,
    queues: int,
    linear: int,
    out: Path,
) -> PackingDemoResult:
    """Packs, and writes ``micro_batches.png`` and ``result.json``; for arguments, see `compare`.

    Args:
        context: None is `suitable_context`.
        linear: see `DocumentCost`.

    Raises:
        ConfigurationError: there is too little text, or options are out of range.
        ImportError: matplotlib is not installed.
    """
    lengths = documents.lengths
    chosen = suitable_context(int(lengths.sum()), micro_batches) if context is None else context
    cost = DocumentCost(linear=linear)
    result = PackingDemoResult(
        options={
            "context_chosen": context is None,
            "micro_batches": micro_batches,
            "max_tokens": max_tokens,
            "queues": queues,
        },
        documents=documents,
        context=chosen,
        cost=cost,
        packed=compare(
            lengths,
            context=chosen,
            micro_batches=micro_batches,
            queues=(queues,),
            max_tokens=max_tokens,
            cost=cost,
        ),
        picture=out / "micro_batches.png",
    )
    plot_packing(result.panels(), result.picture, title="Cost of every micro-batch in each step")
    (out / "result.json").write_text(json.dumps(result.as_dict(), indent=1) + "\n")
    return result


@dataclass(frozen=True, kw_only=True)
class PackingDemoResult:
    """The documents, and all packers' figures."""

    options: Mapping[str, Any]
    documents: DocumentLengths
    context: int
    cost: DocumentCost
    packed: Sequence[Packed]
    """Original packing first."""
    picture: Path

    def as_dict(self) -> dict[str, Any]:
        """One object with all figures."""
        documents = self.documents
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
            **self.options,
            "linear": self.cost.linear,
            "quadratic": self.cost.quadratic,
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
            f"{self.options['micro_batches']} micro-batches of {self.context:,} tokens"
        )
        header = ["", *(packed.name for packed in self.packed)]
        rows = [[name, *(column[name] for column in cells)] for name in cells[0]]
        table = text_table(header, rows, title=title)
        return f"{table}\n\n{self.meaning()}"

    def meaning(self) -> str:
        """How the documents were packed, in sentences."""
        original, wlb, steady = self.packed[0], self.packed[1], self.packed[-1]
        cost = self.cost
        text = []
        text.append(
            "Imbalance is the largest cost of a micro-batch over the mean, 1 at best; a document "
            f"of d tokens costs {_work(cost)}."
        )
        if self.options["context_chosen"]:
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
