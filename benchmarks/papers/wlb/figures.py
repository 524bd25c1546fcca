"""Figures 12 and 13 of the WLB-LLM paper as predictions: nothing here was measured on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.lib.report import progress
from benchmarks.papers.outcome import Outcome, Table
from benchmarks.papers.wlb.packing_run import Packed, run_evenstep, run_original
from benchmarks.papers.wlb.step_time_model import SHARDINGS, TABLE_1, StepModel
from benchmarks.papers.wlb.table2 import algorithm_1, stream_of
from evenstep.plan.packing import DocumentCost

QUEUES = 2
STREAMS, BATCHES = 2, 80
PAPER = {"mean": 1.23, "mean, 64K": 1.15, "mean, 128K": 1.30}
SEVEN_128 = {
    "per-document sharding": 1.02,
    "adaptive sharding": 1.05,
    "WLB packing": 1.28,
    "WLB-LLM": 1.33,
}
"""Figure 13, of 7B-128K."""


def speedups(model: StepModel, seeds: Sequence[int], batches: int) -> dict[str, float]:
    """Over Plain-4D, of each system and of the parts of WLB-LLM."""
    progress(model.name)
    cost = model.document_cost()
    streams = [stream_of(model.context, model.micro_batches, batches, seed) for seed in seeds]
    letter = algorithm_1(QUEUES, cost, max(seeds) + 1)
    plain = seconds(model, cost, [run_original(each) for each in streams])
    wlb = seconds(model, cost, [letter(each) for each in streams])
    packed = [run_evenstep(each, cost) for each in streams]
    own = seconds(model, cost, packed, methods=SHARDINGS, ordered=True)
    found = {
        "per-document sharding": plain["per-document"],
        "adaptive sharding": plain["adaptive"],
        "WLB packing": wlb["per-sequence"],
        "WLB-LLM": wlb["adaptive"],
        "evenstep": own["adaptive"],
    }
    return {name: plain["per-sequence"] / spent for name, spent in found.items()}


def seconds(
    model: StepModel,
    cost: DocumentCost,
    runs: Sequence[Packed],
    *,
    methods: Sequence[str] = SHARDINGS[:2],
    ordered: bool = False,
) -> dict[str, float]:
    """Per unit of cost, under each way of sharding, all streams together."""
    spent = dict.fromkeys((*methods, "adaptive"), 0.0)
    for packed in runs:
        for name, attention in model.attentions(packed, methods).items():
            spent[name] += float(model.steps(packed, attention, ordered=ordered).sum())
    total = sum(int(cost.of_documents(d).sum()) for packed in runs for d in packed.documents)
    return {name: each / total for name, each in spent.items()}


def figures_12_13(seed: int) -> Outcome:
    found = {each.name: speedups(each, range(seed, seed + STREAMS), BATCHES) for each in TABLE_1}
    rows = []
    for job in TABLE_1:
        row = [job.name, f"{job.tensor}, {job.context_ranks}, 4, {job.data}"]
        row += [f"{found[job.name]['WLB-LLM']:.2f}", "", f"{found[job.name]['evenstep']:.2f}"]
        rows.append(row)
    for label, printed in PAPER.items():
        ending = label.removeprefix("mean").removeprefix(", ")
        of = [each for name, each in found.items() if name.endswith(ending)]
        means = [f"{np.mean([each[name] for each in of]):.2f}" for name in ("WLB-LLM", "evenstep")]
        rows.append([label, "", means[0], f"{printed:.2f}", means[1]])
    parts = [
        [name, f"{value:.2f}", f"{SEVEN_128[name]:.2f}" if name in SEVEN_128 else ""]
        for name, value in found["7B-128K"].items()
    ]
    columns = ["over Plain-4D", "TP, CP, PP, DP", "WLB-LLM", "WLB-LLM: paper", "evenstep"]
    mean = rows[len(TABLE_1)]
    return Outcome(
        [
            Table(columns, rows, "Figure 12, predicted"),
            Table(["7B-128K over Plain-4D", "predicted", "paper"], parts, "Figure 13, predicted"),
        ],
        "WLB-LLM 1.23 times Plain-4D",
        f"{mean[2]}; evenstep {mean[4]}",
    )
