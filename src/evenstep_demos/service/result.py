"""What the demo found: figures of each run, and a table with its meaning."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.strategy import LoadingPlan
from evenstep.tools.report.table import text_table
from evenstep_demos.service.delivery import Records
from evenstep_demos.service.strategies import CONTEXT, DATA, RANKS, SAMPLES_PER_STEP

_COLUMNS = 96
_ROWS = (
    ("imbalance, planned", "planned", ".3f"),
    ("imbalance, measured", "measured", ".3f"),
    ("wait for a step, seconds, median", "wait_median", ".3f"),
    ("wait for the first step, seconds", "wait_first", ".1f"),
    ("samples", "samples", ",d"),
    ("loss, first quarter of steps", "first_loss", ".3f"),
    ("loss, last quarter of steps", "last_loss", ".3f"),
)


def figures(plans: Sequence[LoadingPlan], records: Records) -> dict[str, Any]:
    """Figures of a run.

    Returns:
        Imbalance is the sum over steps of the largest, over the sum of the mean. Times are seconds:

        - ``planned``: imbalance of the buckets' predicted cost.
        - ``measured``: imbalance of the ranks' processor seconds.
        - ``slowest_share``: fraction of all processor seconds that the slowest ranks took. It
          compares runs of the same samples even if the machine was slower in one of them.
        - ``wait_first``, ``wait_median``: of the rank that waited longest, for the first step and
          for later ones.
        - ``first_loss``, ``last_loss``: mean over tokens of the first and last quarter of steps.
        - ``by_rank``: [steps, ranks] processor seconds.
    """
    waits, losses, counts, processor = (  # [steps, ranks]
        np.array([[getattr(record, name) for record in rank] for rank in records]).T
        for name in ("wait", "loss", "supervised", "processor")
    )
    waits, losses, tokens = waits.max(axis=1), losses.sum(axis=1), counts.sum(axis=1)
    later = waits[1:] if len(waits) > 1 else np.zeros(1)
    quarter = max(len(plans) // 4, 1)
    return {
        "steps": len(plans),
        "samples": sum(int(plan.assignment.placed.sum()) for plan in plans),
        "planned": _imbalance(np.array([plan.cost_after.sum(axis=1) for plan in plans])),
        "measured": _imbalance(processor),
        "slowest_share": float(processor.max(axis=1).sum() / processor.sum()),
        "wait_first": float(waits[0]),
        "wait_median": float(np.median(later)),
        "first_loss": float(losses[:quarter].sum() / tokens[:quarter].sum()),
        "last_loss": float(losses[-quarter:].sum() / tokens[-quarter:].sum()),
        "by_rank": np.round(processor, 5).tolist(),
    }


def _imbalance(costs: Float64Array) -> float:
    """Imbalance of [steps, ranks] costs."""
    return float(costs.max(axis=1).sum() / costs.mean(axis=1).sum())


def table_of(result: Mapping[str, Any]) -> str:
    """The table and its meaning, for people."""
    runs, sources = result["runs"], result["data"]["sources"]
    title = (
        f"{sources:,} sources to {RANKS} ranks (DP={DATA} x CP={CONTEXT}), "
        f"{result['steps']} steps of {SAMPLES_PER_STEP} samples"
    )
    rows = [
        [name, *(f"{found[key]:{form}}" for found in runs.values())] for name, key, form in _ROWS
    ]
    before, after = (found["slowest_share"] for found in runs.values())
    meaning = (
        "Imbalance is the slowest rank over the mean, 1 at best: as the plan predicts it, and in "
        "processor seconds of forward and backward passes. Processor seconds of the slowest ranks "
        f"were {before:.0%} of all in order of arrival, and {after:.0%} balanced; {1 / RANKS:.0%} "
        "would be perfect. On processors of their own that is a step "
        f"{before / after:.2f} times as fast. Checked, for both runs: each sample was delivered "
        "once, to the ranks that the mesh names and no other, and the shards of context-parallel "
        f"ranks make up the stored samples ({result['tokens_checked']:,} tokens)."
    )
    table = text_table(["", *runs], rows, title=title)
    return f"{table}\n\n{textwrap.fill(meaning, _COLUMNS)}"
