"""Table 2's rows of the solver, with as much time as the paper's had."""

from __future__ import annotations

from collections import Counter

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.packing_result import measure
from benchmarks.papers.wlb.packing_run import run_exact
from benchmarks.papers.wlb.table2 import CONTEXT, COST, fixed_length, mean, packed, streams

SECONDS = 25.0
"""The paper's solver took 25.3 s for four global batches, and less for fewer."""
PAPER = {1: (1.40, 467), 2: (1.18, 1488), 4: (1.09, 25_313)}
"""By the global batches that are packed together: imbalance, and milliseconds."""
BATCHES = 4


def solver_rows(seed: int) -> Outcome:
    drawn = streams(BATCHES, (seed, seed + 1))
    rows = []
    for batches, (imbalance, milliseconds) in PAPER.items():
        progress(f"{batches} global batches")
        trained = [
            run_exact(
                stream,
                batches=batches,
                cost=COST,
                max_tokens=CONTEXT,
                time_limit=SECONDS,
                end="carry",
            )
            for stream in drawn
        ]
        solved = [measure(stream, one, COST) for stream, one in zip(drawn, trained)]
        ended = sum((Counter(one.statuses) for one in trained), Counter())
        each = mean(solved, "plan_ms") * BATCHES * len(drawn) / sum(ended.values())
        rows.append(
            [
                f"{batches}",
                f"{imbalance:.2f}",
                f"{mean(solved, 'imbalance'):.2f}",
                f"{mean(packed(fixed_length(batches), drawn), 'imbalance'):.2f}",
                f"{milliseconds:,}",
                f"{each:,.0f}",
                ", ".join(f"{n} {status}" for status, n in sorted(ended.items())),
            ]
        )
    progress("")
    columns = ["global batches packed together", "imbalance: paper", "ours", "greedy"]
    columns += ["ms: paper", "ours, each", "ended"]
    printed = ", ".join(f"{imbalance:.2f}" for imbalance, _ in PAPER.values())
    return Outcome(
        [Table(columns, rows, f"Up to {SECONDS:g} s a packing")],
        printed,
        ", ".join(row[2] for row in rows),
    )
