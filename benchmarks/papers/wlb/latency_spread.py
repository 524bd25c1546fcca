"""Figures 1a and 4a: how unlike the ranks of an 8K-GPU job are, by the model of step times."""

from __future__ import annotations

import numpy as np

from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.cluster_assumptions import ClusterAssumptions, ModelSize
from benchmarks.papers.wlb.packing_run import ArrivingDocuments, run_original
from benchmarks.papers.wlb.step_time_model import MicroBatches, StepModel
from evenstep.arrays import Float64Array
from evenstep.plan.sharding.adaptive import shard
from evenstep.tools.simulate import DISTRIBUTIONS, sample_lengths

LENGTHS = "pretrain-128k"
STEPS = 8
JOB = ClusterAssumptions(
    model=ModelSize(name="405B", layers=128, hidden_size=16_384, ffn_size=53_248),
    context=131_072,
    tensor=8,
    context_ranks=16,
    stages=16,
    data=4,
)
"""The ranks are the paper's; it does not name the model, so this is Llama 3's largest, with two
layers more, which 16 stages can share."""


def figures_1a_4a(seed: int) -> Outcome:
    model = StepModel.of(JOB)
    tokens = (STEPS + 1) * JOB.micro_batches * JOB.context
    stream = ArrivingDocuments.of(
        sample_lengths(LENGTHS, int(tokens / DISTRIBUTIONS[LENGTHS].mean), seed),
        context=JOB.context,
        micro_batches=JOB.micro_batches,
    )
    packed = MicroBatches.of(run_original(stream, end="carry"), JOB.micro_batches)
    rows = []
    found: dict[str, Float64Array] = {}
    linear = model.linear(packed.tokens).sum(axis=0).reshape(-1, JOB.data, JOB.stages)
    for method in ("per-sequence", "per-document"):
        each = np.stack(
            [
                model.latency.of_ranks(shard(d, JOB.context_ranks, methods=(method,))).sum(axis=0)
                for d in packed.documents
            ]
        )  # [steps x micro-batches, context ranks]
        by_rank = each.reshape(-1, JOB.data, JOB.stages, JOB.context_ranks).sum(axis=2)
        found[method] = by_rank  # [steps, data, context ranks]
        both = by_rank + linear.sum(axis=2)[:, :, None]
        rows.append(
            [
                method,
                ratio(by_rank, (1, 2)),
                ratio(by_rank.mean(axis=2), (1,)),
                ratio(by_rank, (2,)),
                ratio(both, (1, 2)),
            ]
        )
    header = ["sharding", "all ranks", "between data-parallel ranks", "within a CP group"]
    header += ["all ranks, with all else"]
    first = found["per-sequence"]
    return Outcome(
        [Table(header, rows, f"Slowest over mean of {STEPS} steps, and over the fastest")],
        "slowest 1.44 times the others",
        f"{(first.max(axis=(1, 2)) / first.mean(axis=(1, 2))).mean():.2f} times the mean",
    )


def ratio(seconds: Float64Array, axes: tuple[int, ...]) -> str:
    """Largest over mean, and over the smallest, along these axes; mean over all others."""
    most = seconds.max(axis=axes)
    mean, least = seconds.mean(axis=axes), seconds.min(axis=axes)
    return f"{(most / mean).mean():.2f}; {(most / least).mean():.2f}"
