"""The jobs behind `figures.py`: which documents, packed and sharded how, in which model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.lib.report import progress
from benchmarks.papers.wlb.algorithm_1 import run_algorithm_1
from benchmarks.papers.wlb.cluster_assumptions import MODELS, TABLE_1, ClusterAssumptions
from benchmarks.papers.wlb.packing_run import (
    ArrivingDocuments,
    Trained,
    run_evenstep,
    run_fixed_length,
    run_original,
)
from benchmarks.papers.wlb.step_time_model import SHARDINGS, MicroBatches, StepModel
from benchmarks.papers.wlb.thresholds import auto_thresholds
from evenstep.arrays import Int64Array
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.tools.simulate import DISTRIBUTIONS, sample_lengths

LENGTHS = "pretrain-128k"
QUEUES = 2
THRESHOLD_SAMPLE = 50_000
SEVEN_128 = next(setting for setting in TABLE_1 if setting.name == "7B-128K")
WINDOWS = (32, 64, 96, 128, 160)
"""Thousands of tokens, of figure 14."""

Rates = Mapping[str, float]
"""name -> seconds per unit of cost."""


def drawn(count: int, seed: int) -> Int64Array:
    return np.random.default_rng(seed).permutation(sample_lengths(LENGTHS, count, seed))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is the same for all figures."""

    seeds: Sequence[int]
    batches: int

    def streams(self, setting: ClusterAssumptions) -> list[ArrivingDocuments]:
        tokens = (self.batches + 1) * setting.micro_batches * setting.context
        count = int(tokens / DISTRIBUTIONS[LENGTHS].mean)
        return [
            ArrivingDocuments.of(
                drawn(count, seed),
                context=setting.context,
                micro_batches=setting.micro_batches,
            )
            for seed in self.seeds
        ]

    def packed(
        self, setting: ClusterAssumptions, cost: DocumentCost, method: str
    ) -> list[MicroBatches]:
        """One for each stream."""
        made = [self.trained(stream, cost, method) for stream in self.streams(setting)]
        return [MicroBatches.of(trained, setting.micro_batches) for trained in made]

    def trained(self, stream: ArrivingDocuments, cost: DocumentCost, method: str) -> Trained:
        if method == "original":
            return run_original(stream, end="carry")
        if method == "fixed":
            return run_fixed_length(stream, 1, cost=cost, end="carry")
        if method == "evenstep":
            return run_evenstep(stream, cost=cost, end="carry")
        sample = drawn(THRESHOLD_SAMPLE, max(self.seeds) + 1)
        thresholds = auto_thresholds(
            np.minimum(sample, stream.context), context=stream.context, queues=QUEUES, cost=cost
        )
        return run_algorithm_1(stream, thresholds=thresholds, cost=cost)

    def rates(
        self,
        model: StepModel,
        packing: str,
        *,
        methods: Sequence[str] = SHARDINGS[:2],
        ordered: bool = False,
    ) -> Rates:
        """Seconds per unit of cost under each way of sharding, all streams together."""
        progress(f"{model.setting.name}, {packing}")
        cost = model.document_cost()
        seconds: dict[str, float] = {}
        total = 0
        for packed in self.packed(model.setting, cost, packing):
            total += sum(int(cost.of_documents(d).sum()) for d in packed.documents)
            for name, attention in model.attentions(packed, methods=methods).items():
                spent = model.steps(packed, attention, ordered=ordered).sum()
                seconds[name] = seconds.get(name, 0.0) + float(spent)
        return {name: spent / total for name, spent in seconds.items()}

    def job(self, model: StepModel) -> dict[str, float]:
        """Speedup over Plain-4D of each system, and of the parts of WLB-LLM."""
        plain = self.rates(model, "original")
        fixed = self.rates(model, "fixed")
        wlb = self.rates(model, "wlb")
        own = self.rates(model, "evenstep", methods=SHARDINGS, ordered=True)
        base = plain["per-sequence"]
        return {
            "plain": 1.0,
            "fixed": base / min(fixed["per-sequence"], fixed["per-document"]),
            "per-document": base / plain["per-document"],
            "adaptive": base / plain["adaptive"],
            "packing": base / wlb["per-sequence"],
            "wlb": base / wlb["adaptive"],
            "evenstep": base / own["adaptive"],
        }

    def layer(self, model: StepModel) -> dict[str, dict[str, float]]:
        """Figure 15: speedups over per-sequence sharding of one layer, forward and backward."""
        sums: dict[str, float] = {}
        linear = 0.0
        for packed in self.packed(model.setting, model.document_cost(), "original"):
            linear += float(model.linear(packed.tokens).sum())
            both = dict(model.attentions(packed))
            both["hybrid"] = model.attentions(packed, methods=SHARDINGS)["adaptive"]
            for name, attention in both.items():
                sums[name] = sums.get(name, 0.0) + float(attention.sum())
        base = sums["per-sequence"]
        return {
            "layer": {name: (base + linear) / (own + linear) for name, own in sums.items()},
            "attention": {name: base / own for name, own in sums.items()},
        }


def measure(bench: Bench) -> dict[str, Any]:
    """All figures, as JSON has them."""
    table_1 = {s.name: bench.job(StepModel.of(s)) for s in TABLE_1}
    figure_14 = {}
    for window in WINDOWS:
        setting = replace(SEVEN_128, context=1024 * window)
        if setting == SEVEN_128:
            figure_14[str(window)] = table_1[SEVEN_128.name]
        else:
            figure_14[str(window)] = bench.job(StepModel.of(setting))
    figure_15: dict[str, Any] = {}
    for window, tensor in ((64, 4), (128, 8)):
        setting = ClusterAssumptions(
            model=MODELS["7B"], context=1024 * window, tensor=tensor, context_ranks=4
        )
        figure_15[f"{window}K"] = bench.layer(StepModel.of(setting))
    return {
        "figure 12": table_1,
        "figure 14": figure_14,
        "figure 15": figure_15,
    }
