"""The strategies that the text demo compares, the weights that both draw by, and their jobs.

Planners and loaders run this, so it needs no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

import evenstep.service as es
from evenstep.cost import TransformerCost
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep.strategy.mixture import FeedbackSchedule, WarmUp
from evenstep_demos.service.options import CONTEXT, DATA, MICRO_BATCHES, ServiceDemoOptions
from evenstep_demos.service.sources import StoredSources

BYTES = 256
"""Tokens of a byte-level model."""

LAYERS, HIDDEN = 2, 64
SHAPE: dict[str, Any] = {"layers": LAYERS, "hidden_size": HIDDEN, "heads": 2}
"""The shape of the models: about 0.1 million parameters, so that four of them train on a laptop."""

_PUSH = 0.5


def gpt_cost(vocabulary: int) -> TransformerCost:
    """The cost of a document in the language model, by its length."""
    return TransformerCost(**SHAPE, ffn_size=4 * HIDDEN, vocab_size=vocabulary, gated=False)


_COST = gpt_cost(BYTES)


def tokens_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a stored document into a sample, whose tokens are bytes of UTF-8."""
    return {"input_ids": np.frombuffer(row["text"].encode(), np.uint8)}


def vanilla(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals samples as they come, equally many to each micro-batch."""
    return graph.mix().distribute("DP").cost(_COST).plan()


def balanced(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals the same samples by their cost."""
    return graph.mix().distribute("DP").cost(_COST).balance("karmarkar_karp").plan()


TEXT_RUNS = {"vanilla": vanilla, "balanced": balanced}
"""By the name of each run, in the order in which they are made."""


def follow_losses(weights: Mapping[str, float], signals: Mapping[str, Any]) -> dict[str, float]:
    """Sources with a loss above the mean get more weight, the others less. Those that had no sample
    in the step keep theirs."""
    losses: Mapping[str, float] = signals["loss_by_source"]
    mean = math.fsum(losses.values()) / len(losses)
    return {
        name: weight * math.exp(_PUSH * (losses.get(name, mean) - mean))
        for name, weight in weights.items()
    }


def common(options: ServiceDemoOptions) -> dict[str, Any]:
    """What all jobs of the demo share."""
    return {
        "mesh": es.Mesh(DP=DATA, CP=CONTEXT),
        "micro_batches": MICRO_BATCHES,
        "seed": options.seed,
        # 16 samples of each source: there are many sources.
        "memory": es.MemoryOptions(buffer_size=16, plans_kept=options.steps + 8),
    }


def text_job(stored: StoredSources, options: ServiceDemoOptions, run: str) -> es.Job:
    """The job of a run; runs differ only in the strategy."""
    proportional = {name: float(count) for name, count in stored.samples.items()}
    tempered = {name: math.sqrt(count) for name, count in stored.samples.items()}
    return es.Job(
        sources=stored.sources(tokens_of),
        strategy=TEXT_RUNS[run],
        draws=es.DrawOptions(
            schedule=FeedbackSchedule(initial=tempered, function=follow_losses)
            if options.live
            else WarmUp(start=proportional, end=tempered, steps=max(options.steps // 2, 1)),
            samples_per_step=options.samples_per_step,
        ),
        measures=es.MeasureOptions(loss_reduction="sum"),
        max_tokens=options.max_tokens,
        **common(options),
    )
