"""Packers of pretraining documents over the same stream: original packing, Algorithm 1, evenstep.

Original packing cuts documents wherever a window ends. The others keep documents whole, except
those longer than the context window, which no model could attend to in one piece: these are split
into as few equal parts as possible. Figures are those of the steps in which documents arrive.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from benchmarks.papers.wlb.algorithm_1 import run_algorithm_1
from benchmarks.papers.wlb.packing_result import makespan_ratio, measure
from benchmarks.papers.wlb.packing_run import (
    ArrivingDocuments,
    Trained,
    run_evenstep,
    run_original,
)
from benchmarks.papers.wlb.thresholds import auto_thresholds
from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.packing import DocumentCost, cut_long


def compare(
    lengths: Int64Array, *, context: int, micro_batches: int, cost: DocumentCost | None = None
) -> dict[str, dict[str, Any]]:
    """Original packing, Algorithm 1 with two queues, and evenstep.

    Args:
        lengths: [documents] int64, each positive, in order of arrival.
        context: tokens of a window, and of a micro-batch on average.

    Returns:
        Name of the packer -> figures: those of `PackingResult`; ``makespan_ratio`` of 1F1B on four
        stages, micro-batches as the packer yields them; and ``documents_cut``, in which some token
        cannot attend to all tokens before it.

    Raises:
        ConfigurationError: there is not even one global batch, or options are out of range.
    """
    cost = cost or DocumentCost()
    total = int(lengths.sum())
    if total < context * micro_batches:
        raise ConfigurationError(
            f"{len(lengths):,} documents of {total:,} tokens are less than one step of "
            f"micro_batches={micro_batches} times context={context:,}; give more text, or a "
            "smaller context"
        )
    windows = ArrivingDocuments.of(lengths, context=context, micro_batches=micro_batches)
    pieces = cut_long(lengths, context, "split")
    whole = ArrivingDocuments.of(
        pieces.lengths, context=context, micro_batches=micro_batches, whole=True
    )
    # Positions are those of documents, so that pieces of one are known.
    whole = dataclasses.replace(whole, pieces=pieces)
    thresholds = auto_thresholds(pieces.lengths, context=context, queues=2, cost=cost)
    epochs = {
        "original": (windows, run_original(windows, end="carry")),
        "Algorithm 1": (whole, run_algorithm_1(whole, thresholds=thresholds, cost=cost)),
        "evenstep": (whole, run_evenstep(whole, cost=cost, end="carry")),
    }
    return {name: _figures(*epoch, cost) for name, epoch in epochs.items()}


def _figures(arrivals: ArrivingDocuments, trained: Trained, cost: DocumentCost) -> dict[str, Any]:
    result = measure(arrivals, trained, cost)
    return {
        **result.as_dict(),
        "makespan_ratio": makespan_ratio(result.costs, ordered=False),
        "documents_cut": int((np.bincount(arrivals.pieces.documents) > 1).sum()),
    }
