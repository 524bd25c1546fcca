"""``evenstep demo-packing`` once documents are read: packs, and tells what it found."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from evenstep.cli.output import note, print_json
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
_TITLES = {
    "original": "original packing (documents cut wherever a window ends)",
    "WLB": "WLB (by cost, outliers delayed)",
    "steady": "steady (by cost, even tokens per step)",
}


def suitable_context(tokens: int, micro_batches: int) -> int:
    """The largest power of two from 256 to 131,072 with which `tokens` last for `STEPS` steps, or
    256 if none does."""
    for context in _CONTEXTS:
        if tokens >= STEPS * micro_batches * context:
            return context
    return _CONTEXTS[-1]


def pack_documents(
    documents: DocumentLengths, *, context: int | None, micro_batches: int, out: Path, as_json: bool
) -> None:
    """Packs, prints the result, and writes ``micro_batches.png`` and ``result.json``; for
    arguments, see `compare`.

    Args:
        context: None is `suitable_context`.

    Raises:
        ConfigurationError: there is too little text, or options are out of range.
        ImportError: matplotlib is not installed.
    """
    lengths = documents.lengths
    window = suitable_context(int(lengths.sum()), micro_batches) if context is None else context
    packed = compare(lengths, context=window, micro_batches=micro_batches)
    unit = float(packed[0].arriving.costs.mean())
    panels = [
        PackingPanel(
            title=f"{_TITLES[each.name]}: imbalance {each.arriving.imbalance:.2f}",
            costs=each.arriving.costs / unit,
        )
        for each in packed
    ]
    picture = out / "micro_batches.png"
    plot_packing(panels, picture, title="Cost of every micro-batch in each step")
    over = int((lengths > window).sum())
    result = {
        "documents": {
            "name": documents.name,
            "token": documents.tokens,
            "found": documents.found,
            "packed": len(lengths),
            "tokens": int(lengths.sum()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "longest": int(lengths.max()),
            "over_context": over,
        },
        "context": window,
        "context_chosen": context is None,
        "micro_batches": micro_batches,
        "packers": {each.name: each.as_dict() for each in packed},
        "picture": str(picture),
    }
    (out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    if as_json:
        print_json(result)
    else:
        title = (
            f"{len(lengths):,} documents in steps of {micro_batches} micro-batches of {window:,} "
            "tokens"
        )
        cells = [_cells(each) for each in packed]
        rows = [[name, *(column[name] for column in cells)] for name in cells[0]]
        print(text_table(["", *(each.name for each in packed)], rows, title=title))
        print(f"\n{meaning(packed, over)}")
    note(f"picture: {picture}\nfigures: {out / 'result.json'}")


def meaning(packed: Sequence[Packed], over: int) -> str:
    """How the documents were packed, in sentences.

    Args:
        over: documents longer than the context.
    """
    original, wlb, _ = packed
    split = f"split the {over:,} longer than the context, into as few equal pieces as possible"
    queues = (
        f"WLB's queues take documents from {' and '.join(f'{n:,}' for n in wlb.thresholds)} tokens "
        "on"
        if wlb.thresholds
        else "WLB delays none: no length separates outliers from other documents here"
    )
    text = (
        "Imbalance is the largest cost of a micro-batch over the mean, 1 at best; a document of d "
        f"tokens costs d² + {DocumentCost().linear:,} d. Original packing cut "
        f"{original.documents_cut:,} documents, wherever a window ended; WLB and steady "
        f"{split if over else 'cut none'}. {queues}. The last steps train on documents that still "
        "wait when all have arrived."
    )
    return textwrap.fill(text, _COLUMNS)


def _cells(packed: Packed) -> dict[str, str]:
    """A column of the table."""
    now, epoch = packed.arriving, packed.epoch
    return {
        "steps, and last ones": f"{now.steps:,} + {packed.last_steps}",
        "imbalance": f"{now.imbalance:.3f}",
        "1F1B over balanced": f"{packed.makespan(ordered=False):.3f}",
        "token delay, mean steps": f"{epoch.token_delay_mean:.2f}",
        "longest delay of a document": f"{epoch.token_delay_max:,}",
        "tokens per step, variation": f"{now.tokens_per_step_cv:.3f}",
        "longest micro-batch, tokens": f"{epoch.max_tokens:,}",
        "documents cut": f"{packed.documents_cut:,}",
        "planning a step, ms": f"{epoch.plan_ms:.2f}",
    }
