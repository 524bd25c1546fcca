"""The mesh, the two strategies that the demo compares, and their jobs.

Planners and loaders run this, so it needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import evenstep.service as es
from evenstep.cost import TransformerCost
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree
from evenstep_demos.service.sources import MAX_LENGTH, StoredSources

DATA, CONTEXT = 2, 2
"""Data-parallel groups, and context-parallel ranks of each."""
RANKS = DATA * CONTEXT
MICRO_BATCHES = 2
"""Micro-batches of each data-parallel group in a step."""
SAMPLES_PER_STEP = 24

_MAX_TOKENS = SAMPLES_PER_STEP // (DATA * MICRO_BATCHES) * MAX_LENGTH
"""Tokens of a packed row that hold the samples of a micro-batch if all have the largest length, so
that none waits for the next step, however they are dealt."""

BYTES = 256
"""Tokens of a byte-level model."""

HIDDEN = 64
SHAPE: dict[str, Any] = {"layers": 2, "hidden_size": HIDDEN, "heads": 2}
"""The shape of the model: about 0.1 million parameters, so that four of them train on a laptop."""

_COST = TransformerCost(**SHAPE, ffn_size=4 * HIDDEN, vocab_size=BYTES, gated=False)


def tokens_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a stored document into a sample, whose tokens are bytes of UTF-8."""
    return {"input_ids": np.frombuffer(row["text"].encode(), np.uint8)}


def vanilla(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals samples as they come, equally many to each micro-batch."""
    return graph.mix().distribute("DP").cost(_COST).plan()


def balanced(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    """Deals the same samples by their cost."""
    return graph.mix().distribute("DP").cost(_COST).balance("karmarkar_karp").plan()


STRATEGIES = {"vanilla": vanilla, "balanced": balanced}
"""By the name of each run, in the order in which they are made."""


def job_of(stored: StoredSources, run: str, *, steps: int, seed: int) -> es.Job:
    """The job of a run; runs differ only in the strategy."""
    return es.Job(
        sources=stored.sources(tokens_of),
        mesh=es.Mesh(DP=DATA, CP=CONTEXT),
        strategy=STRATEGIES[run],
        micro_batches=MICRO_BATCHES,
        max_tokens=_MAX_TOKENS,
        seed=seed,
        draws=es.DrawOptions(
            schedule={name: float(count) for name, count in stored.samples.items()},
            samples_per_step=SAMPLES_PER_STEP,
        ),
        measures=es.MeasureOptions(loss_reduction="sum"),
        # 16 samples of each source: there are many sources.
        memory=es.MemoryOptions(buffer_size=16, plans_kept=steps + 8),
    )
