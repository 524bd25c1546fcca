"""Table 2 of the WLB-LLM paper: imbalance of packing methods, on one rank and on several.

Lengths are drawn from the distribution `pretrain-128k`, whose share of long documents is fitted to
the table's first row.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.algorithm_1 import Algorithm1, auto_thresholds
from benchmarks.papers.wlb.packing_run import (
    Packed,
    Stream,
    run_evenstep,
    run_original,
    run_planner,
)
from evenstep.plan.packing import DocumentCost, WorkloadPacking
from evenstep.tools.simulate import DISTRIBUTIONS, deal, sample_lengths, simulate

LENGTHS = "pretrain-128k"
CONTEXT = 131_072
MICRO_BATCHES = 4
COST = DocumentCost(linear=24_576)
ROOM = 1.25
"""Windows that a micro-batch of Algorithm 1 holds."""
STREAMS, BATCHES, THRESHOLD_SAMPLE = 3, 480, 50_000
WLB = {1: (1.24, 8), 2: (1.05, 20), 3: (1.05, 23)}
"""By queues, imbalance degree and milliseconds of packing, as Table 2 prints them."""
RANKS, DOCUMENTS = (1, 2, 8, 64), 24_000  # of each rank: some 200 steps


def stream_of(
    context: int, micro_batches: int, batches: int, seed: int, lengths: str = LENGTHS
) -> Stream:
    """Documents of so many global batches, or one more or less."""
    tokens = (batches + 1) * micro_batches * context
    drawn = sample_lengths(lengths, int(tokens / DISTRIBUTIONS[lengths].mean), seed)
    return Stream.of(drawn, context=context, micro_batches=micro_batches)


def algorithm_1(queues: int, cost: DocumentCost, seed: int) -> Callable[[Stream], Packed]:
    def run(stream: Stream) -> Packed:
        sample = np.minimum(sample_lengths(LENGTHS, THRESHOLD_SAMPLE, seed), stream.context)
        planner = Algorithm1(
            micro_batches=stream.micro_batches,
            max_tokens=int(ROOM * stream.context),
            thresholds=auto_thresholds(sample, context=stream.context, queues=queues, cost=cost),
            cost=cost,
        )
        return run_planner(planner, stream)

    return run


def table_2(seed: int) -> Outcome:
    end = seed + STREAMS
    streams = [stream_of(CONTEXT, MICRO_BATCHES, BATCHES, number) for number in range(seed, end)]
    cases: dict[str, tuple[tuple[float, int] | None, Callable[[Stream], Packed]]] = {
        "original": ((1.44, 0), run_original),
        **{f"Algorithm 1, {n} queues": (WLB[n], algorithm_1(n, COST, end)) for n in WLB},
        "evenstep": (None, lambda stream: run_evenstep(stream, COST)),
    }
    rows = []
    for method, (printed, run) in cases.items():
        progress(method)
        found = [run(stream) for stream in streams]
        imbalance = np.mean([each.imbalance(COST) for each in found])
        planning = np.mean([1e3 * each.seconds / each.stream.complete for each in found])
        paper = [f"{value}" for value in printed] if printed else ["", ""]
        rows.append([method, paper[0], f"{imbalance:.3f}", paper[1], f"{planning:,.2f}"])
    columns = ["method", "imbalance: paper", "imbalance", "plan ms: paper", "plan ms"]
    return Outcome(
        [Table(columns, rows)],
        "original 1.44; 1, 2, 3 queues 1.24, 1.05, 1.05",
        f"{rows[0][2]}; {', '.join(row[2] for row in rows[1:4])}; evenstep's {rows[4][2]}",
    )


def by_ranks(seed: int) -> Outcome:
    """What Table 2 has of one rank, for several that each have documents of their own."""
    rows = []
    policy = WorkloadPacking(CONTEXT, micro_batches=MICRO_BATCHES, cost=COST)
    for ranks in RANKS:
        progress(f"{ranks} ranks")
        lengths = sample_lengths(LENGTHS, DOCUMENTS * ranks, seed)
        shards = deal(len(lengths), ranks, seed)
        found = simulate(policy, [lengths[shard] for shard in shards], identities=shards, seed=seed)
        row = [f"{ranks}", f"{found.imbalance_arriving:.3f}", f"{found.imbalance:.3f}"]
        row += [f"{found.composition:.2f}", f"{found.mean_delay_steps:.1f}"]
        rows.append([*row, f"{found.max_delay_steps}"])
    columns = ["ranks", "imbalance while documents arrive", "of the whole epoch", "composition"]
    return Outcome(
        [Table([*columns, "mean delay", "longest"], rows, f"{DOCUMENTS:,} documents on each rank")],
        "1.05, on one",
        "; of the whole epoch ".join(", ".join(row[at] for row in rows) for at in (1, 2)),
    )
