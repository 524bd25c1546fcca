"""What Table 2 has of one rank, for several that each have documents of their own."""

from __future__ import annotations

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.table2 import CONTEXT, COST, LENGTHS, MICRO_BATCHES
from evenstep.plan.packing import WorkloadPacking
from evenstep.tools.simulate import SimulationResult, deal, sample_lengths, simulate

RANKS = (1, 2, 8, 64)
DOCUMENTS = 24_000
"""Of each rank: some 200 steps."""


def packed(ranks: int, seed: int) -> SimulationResult:
    lengths = sample_lengths(LENGTHS, DOCUMENTS * ranks, seed)
    policy = WorkloadPacking(CONTEXT, micro_batches=MICRO_BATCHES, cost=COST)
    shards = deal(len(lengths), ranks, seed)
    return simulate(policy, [lengths[shard] for shard in shards], identities=shards, seed=seed)


def by_ranks(seed: int) -> Outcome:
    rows = []
    for ranks in RANKS:
        progress(f"{ranks} ranks")
        found = packed(ranks, seed)
        tokens = found.tokens_per_step / (ranks * MICRO_BATCHES)
        row = [f"{ranks}", f"{found.imbalance_arriving:.3f}", f"{found.imbalance:.3f}"]
        row += [f"{found.composition:.2f}", f"{tokens:,.0f}", f"{found.tokens_per_update_cv:.1%}"]
        rows.append([*row, f"{found.mean_delay_steps:.1f}", f"{found.max_delay_steps}"])
    progress("")
    columns = ["ranks", "imbalance while documents arrive", "of the whole epoch", "composition"]
    columns += ["tokens of a micro-batch", "of a step, CV", "mean delay", "longest"]
    return Outcome(
        [Table(columns, rows, f"{DOCUMENTS:,} documents on each rank")],
        "1.05, on one",
        ", ".join(row[1] for row in rows),
    )
