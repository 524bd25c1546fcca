"""Table 2 of the WLB-LLM paper: imbalance of packing methods, the paper's figures and ours.

Lengths are drawn from the distribution `pretrain-128k`, whose share of long documents is fitted to
the table's first row. `--repeats` is the number of streams. The solver's rows, which take minutes,
are the entry wlb/solver of the book.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.lib.report import Table, parser, progress, show
from benchmarks.papers.wlb.algorithm_1 import run_algorithm_1
from benchmarks.papers.wlb.packing_result import PackingResult, measure
from benchmarks.papers.wlb.packing_run import (
    ArrivingDocuments,
    Trained,
    run_evenstep,
    run_fixed_length,
    run_original,
)
from benchmarks.papers.wlb.thresholds import auto_thresholds
from evenstep.plan.packing import DocumentCost
from evenstep.tools.simulate import DISTRIBUTIONS, sample_lengths

LENGTHS = "pretrain-128k"
CONTEXT = 131_072
MICRO_BATCHES = 4
COST = DocumentCost(linear=24_576)
THRESHOLD_SAMPLE = 50_000
FIXED = {1: (1.41, 4), 2: (1.22, 5), 4: (1.11, 5), 8: (1.08, 5)}
"""By the global batches that are packed together: imbalance degree and milliseconds of packing of
the fixed-length greedy method, as Table 2 prints them."""
WLB = {1: (1.24, 8), 2: (1.05, 20), 3: (1.05, 23)}
"""The same of WLB-LLM, by queues."""

Run = Callable[[ArrivingDocuments], Trained]


def streams(batches: int, seeds: Sequence[int]) -> list[ArrivingDocuments]:
    """Documents of so many global batches, for each seed."""
    tokens = batches * MICRO_BATCHES * CONTEXT
    # So many documents that there is a global batch more, give or take one.
    count = int((tokens + MICRO_BATCHES * CONTEXT) / DISTRIBUTIONS[LENGTHS].mean)
    drawn = [sample_lengths(LENGTHS, count, seed) for seed in seeds]
    return [
        ArrivingDocuments.of(
            lengths[lengths.cumsum() - lengths < tokens],
            context=CONTEXT,
            micro_batches=MICRO_BATCHES,
        )
        for lengths in drawn
    ]


def thresholds(queues: int, seed: int) -> tuple[int, ...]:
    """Thresholds of WLB-LLM's queues, which follow from a sample of documents."""
    sample = sample_lengths(LENGTHS, THRESHOLD_SAMPLE, seed)
    return auto_thresholds(sample, context=CONTEXT, queues=queues, cost=COST)


def fixed_length(batches: int) -> Run:
    return lambda stream: run_fixed_length(stream, batches, cost=COST, end="carry")


def algorithm_1(ends: Sequence[int], room: float = 1.25) -> Run:
    return lambda stream: run_algorithm_1(stream, thresholds=ends, cost=COST, room=room)


def evenstep(stream: ArrivingDocuments) -> Trained:
    return run_evenstep(stream, cost=COST, end="carry")


def packed(run: Run, streams: Sequence[ArrivingDocuments]) -> list[PackingResult]:
    return [measure(stream, run(stream), COST) for stream in streams]


def mean(results: Sequence[PackingResult], figure: str) -> float:
    return float(np.mean([getattr(result, figure) for result in results]))


def main() -> None:
    arguments = parser(__doc__ or "", "python -m benchmarks.papers.wlb.table2", repeats=3)
    arguments.add_argument("--batches", type=int, default=480, help="global batches of a stream")
    options = arguments.parse_args()
    end = options.seed + options.repeats
    drawn = streams(options.batches, range(options.seed, end))
    cases: list[tuple[str, str, tuple[float, int] | None, Run]] = [
        ("original", "", (1.44, 0), lambda stream: run_original(stream, end="carry")),
        *(
            ("fixed-length greedy", f"{n} global batches", printed, fixed_length(n))
            for n, printed in FIXED.items()
        ),
        *(
            ("Algorithm 1", f"{n} queues", printed, algorithm_1(thresholds(n, end)))
            for n, printed in WLB.items()
        ),
        ("evenstep", "", None, evenstep),
    ]
    rows = []
    for method, setting, printed, run in cases:
        progress(f"{method} {setting}")
        found = packed(run, drawn)
        imbalance, milliseconds = (f"{x}" for x in printed) if printed else ("", "")
        row = [method, setting, imbalance, f"{mean(found, 'imbalance'):.3f}"]
        rows.append([*row, milliseconds, f"{mean(found, 'plan_ms'):,.2f}"])
    columns = ["method", "setting", "imbalance: paper", "imbalance", "plan ms: paper", "plan ms"]
    show(Table(columns, rows), as_json=options.json)


if __name__ == "__main__":
    main()
