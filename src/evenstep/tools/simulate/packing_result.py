"""The figures of a packed stream, each defined where it is named."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.pipeline.micro_batch_order import order_micro_batches
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.tools.simulate.packing_run import ArrivingDocuments, Trained
from evenstep.tools.simulate.pipeline_run import simulate_pipeline

__all__ = ["PackingResult", "makespan_ratio", "measure"]


@dataclass(frozen=True, kw_only=True)
class PackingResult:
    """What a packer made of a stream of documents.

    An iteration with fewer micro-batches than others has empty ones. Pieces of a document that was
    cut at a window count as documents.
    """

    iterations: int
    imbalance: float
    """Mean over iterations of largest work x micro-batches / total work: the paper's degree."""
    imbalance_time_weighted: float
    """Sum over iterations of the largest work, over the sum of the mean work: what time is lost."""
    token_delay_mean: float
    """Iterations between arrival and training, in either direction, mean over tokens."""
    token_delay_max: int
    """The same of the document that moved most, in iterations."""
    tokens_per_step: float
    tokens_per_step_cv: float
    """Standard deviation over mean of the tokens of an iteration."""
    max_tokens: int
    """Of the longest micro-batch."""
    plan_ms: float
    """Milliseconds of planning per iteration, mean."""
    documents_in: int
    documents_out: int
    """Trained on, each once."""
    documents_waiting: int
    works: Int64Array = field(repr=False, compare=False)
    """[iterations, micro-batches] work; 0 for an empty one."""

    def as_dict(self) -> dict[str, Any]:
        """All but the array, as numbers."""
        names = [f.name for f in dataclasses.fields(self) if f.name != "works"]
        return {name: getattr(self, name) for name in names}


def measure(arrivals: ArrivingDocuments, trained: Trained, workload: DocumentCost) -> PackingResult:
    """
    Raises:
        ConfigurationError: nothing was trained on.
    """
    if not len(trained.piece):
        raise ConfigurationError(
            f"{len(arrivals.pieces)} documents are less than one global batch; give more"
        )
    first = int(trained.iteration.min())
    row = trained.iteration - first
    shape = (int(row.max()) + 1, arrivals.micro_batches)
    works, tokens = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(works, (row, trained.micro_batch), workload.of_documents(trained.length))
    np.add.at(tokens, (row, trained.micro_batch), trained.length)
    largest, mean = works.max(axis=1), works.mean(axis=1)
    moved = np.abs(trained.iteration - arrivals.batch[trained.piece])
    per_step = tokens.sum(axis=1)
    out = len(np.unique(trained.piece))
    return PackingResult(
        iterations=shape[0],
        imbalance=float((largest / mean).mean()),
        imbalance_time_weighted=float(largest.sum() / mean.sum()),
        token_delay_mean=float((moved * trained.length).sum() / trained.length.sum()),
        token_delay_max=int(moved.max()),
        tokens_per_step=float(per_step.mean()),
        tokens_per_step_cv=float(per_step.std() / per_step.mean()),
        max_tokens=int(tokens.max()),
        plan_ms=1e3 * trained.seconds / shape[0],
        documents_in=len(arrivals.pieces),
        documents_out=out,
        documents_waiting=len(arrivals.pieces) - out,
        works=works,
    )


def makespan_ratio(
    works: Int64Array, schedule: PipelineSchedule | None = None, *, ordered: bool = True
) -> float:
    """Time of all iterations on a pipeline, over the time with micro-batches of equal work.

    Args:
        works: [iterations, micro-batches], as `PackingResult.works`.
        schedule: None is plain 1F1B on four stages, without latency.
        ordered: each iteration runs its micro-batches in the order that suits the schedule; False
            runs them as they are.
    """
    schedule = schedule or PipelineSchedule()
    taken = balanced = 0.0
    for work in works:
        order = order_micro_batches(work, schedule) if ordered else None
        run = simulate_pipeline(work, schedule, order)
        taken += run.makespan
        balanced += run.balanced_makespan
    return taken / balanced
