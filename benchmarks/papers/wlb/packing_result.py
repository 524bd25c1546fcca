"""The figures of a packed stream of documents, each defined in its docstring."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.papers.wlb.packing_run import ArrivingDocuments, Trained
from benchmarks.papers.wlb.pipeline_run import simulate_pipeline
from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.pipeline import PipelineSchedule, order_micro_batches


@dataclass(frozen=True, kw_only=True)
class PackingResult:
    """The figures of a stream of documents under a packer.

    A step with fewer micro-batches than others has empty ones. Pieces of a document that was cut at
    a window count as documents.
    """

    steps: int
    imbalance: float
    """Mean over steps of largest cost x micro-batches / total cost: WLB-LLM's imbalance degree."""
    imbalance_time_weighted: float
    """Sum over steps of the largest cost, over the sum of the mean cost: the time lost."""
    token_delay_mean: float
    """Steps between arrival and training, in either direction, mean over tokens."""
    token_delay_max: int
    """Steps between arrival and training of the document that moved most."""
    tokens_per_step: float
    tokens_per_step_cv: float
    """Standard deviation over mean of the tokens of a step."""
    max_tokens: int
    """Tokens of the longest micro-batch."""
    plan_ms: float
    """Milliseconds of planning per step, mean."""
    documents_in: int
    documents_out: int
    """Documents trained on, each once."""
    documents_waiting: int
    costs: Int64Array = field(repr=False, compare=False)
    """[steps, micro-batches] cost; 0 for an empty one."""

    def as_dict(self) -> dict[str, Any]:
        """All figures except the array; "iterations" is the number of steps."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("steps", "costs")]
        return {"iterations": self.steps, **{name: getattr(self, name) for name in names}}


def measure(arrivals: ArrivingDocuments, trained: Trained, cost: DocumentCost) -> PackingResult:
    """The figures of `trained`.

    Raises:
        ConfigurationError: nothing was trained on.
    """
    if not len(trained.piece):
        raise ConfigurationError(
            f"{len(arrivals.pieces)} documents fill less than one global batch; give more documents"
        )
    row = trained.step - trained.step.min()  # [n]
    shape = (int(row.max()) + 1, arrivals.micro_batches)
    costs, tokens = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    np.add.at(costs, (row, trained.micro_batch), cost.of_documents(trained.length))
    np.add.at(tokens, (row, trained.micro_batch), trained.length)
    largest, mean = costs.max(axis=1), costs.mean(axis=1)  # [steps]
    moved = np.abs(trained.step - arrivals.batch[trained.piece])  # [n]
    per_step = tokens.sum(axis=1)  # [steps]
    out = len(np.unique(trained.piece))
    return PackingResult(
        steps=shape[0],
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
        costs=costs,
    )


def makespan_ratio(
    costs: Int64Array, schedule: PipelineSchedule | None = None, *, ordered: bool = True
) -> float:
    """Time of all steps on a pipeline, over the time with micro-batches of equal cost.

    Args:
        costs: [steps, micro-batches], as `PackingResult.costs`.
        schedule: None is plain 1F1B on four stages, without latency.
        ordered: each step runs its micro-batches in the order that suits the schedule; False runs
            them as they are.
    """
    schedule = schedule or PipelineSchedule()
    taken = balanced = 0.0
    for forward in costs:
        run = simulate_pipeline(
            forward[order_micro_batches(forward, schedule)] if ordered else forward, schedule
        )
        taken += run.makespan
        balanced += run.balanced_makespan
    return taken / balanced
