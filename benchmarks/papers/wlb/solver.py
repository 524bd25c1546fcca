"""Table 2's rows of the solver, with as much time as the paper's had."""

from __future__ import annotations

from functools import partial

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.table2 import CONTEXT, Bench, plural
from evenstep.plan.packing import DocumentCost
from evenstep.tools.simulate.packing_run import run_exact

SECONDS = 25.0
"""The paper's solver took 25.3 s for four global batches, and less for fewer."""
PAPER = {1: (1.40, 467), 2: (1.18, 1488), 4: (1.09, 25_313)}
BATCHES = 4


def solver_rows(seed: int) -> Outcome:
    cost = DocumentCost(linear=24_576)
    bench = Bench(micro_batches=4, batches=BATCHES, seeds=(seed, seed + 1), cost=cost)
    streams = bench.streams()
    rows, degrees = [], []
    for batches, (imbalance, milliseconds) in PAPER.items():
        progress(f"{batches} global batches")
        _, setting, greedy = bench.fixed_length(batches)
        exact = partial(
            run_exact,
            batches=batches,
            cost=cost,
            max_tokens=CONTEXT,
            time_limit=SECONDS,
            end="carry",
        )
        solved = bench.row("fixed-length solver", setting, exact, streams)
        by_greedy = bench.row("fixed-length greedy", setting, greedy, streams).figures()
        figures = solved.figures()
        degrees.append(f"{figures['imbalance']:.2f}")
        each = figures["plan_ms"] * BATCHES * 2 / sum(solved.statuses.values())
        rows.append(
            [
                plural(batches, "global batch", "global batches"),
                f"{imbalance:.2f}",
                degrees[-1],
                f"{by_greedy['imbalance']:.2f}",
                f"{milliseconds:,}",
                f"{each:,.0f}",
                ", ".join(f"{n} {status}" for status, n in sorted(solved.statuses.items())),
            ]
        )
    progress("")
    header = ["packed together", "imbalance: paper", "ours", "greedy", "ms: paper", "ours, each"]
    header += ["ended"]
    printed = ", ".join(f"{imbalance:.2f}" for imbalance, _ in PAPER.values())
    return Outcome(
        [Table(header, rows, f"Up to {SECONDS:g} s a packing")], printed, ", ".join(degrees)
    )
