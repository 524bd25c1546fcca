"""Packers of pretraining documents over the same stream: original packing, WLB, steady.

Original packing cuts documents wherever a window ends. The planners keep documents whole, except
those longer than the context window, which no model could attend to in one piece: these are split
into as few equal parts as possible. Every packer trains on every token once.

Imbalance is that of the steps in which documents arrive. The planners train on the documents that
still wait then in a few last steps, which are counted, and are in `epoch`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.packing import (
    DocumentCost,
    PackingOptions,
    SteadyOptions,
    auto_thresholds,
    cut_long,
    plan_step,
)
from evenstep.tools.simulate.packing_result import PackingResult, makespan_ratio, measure
from evenstep.tools.simulate.packing_run import (
    ArrivingDocuments,
    Trained,
    run_original,
    run_planner,
)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """The documents as one packer packed them."""

    name: str
    documents_cut: int
    """Documents in which some token cannot attend to all tokens before it."""
    arriving: PackingResult
    """The steps in which documents arrive."""
    epoch: PackingResult
    """All steps. A step with too few documents left has empty micro-batches."""
    thresholds: tuple[int, ...] = ()
    """Thresholds of WLB's queues."""

    def makespan(self, *, ordered: bool) -> float:
        """Time of 1F1B on four stages, over that with micro-batches of equal cost, of the steps in
        which documents arrive: each step in the order that suits it, or as the packer yields it."""
        return makespan_ratio(self.arriving.costs, ordered=ordered)

    @property
    def last_steps(self) -> int:
        """Steps after the last whole global batch has arrived."""
        return self.epoch.steps - self.arriving.steps

    def as_dict(self) -> dict[str, Any]:
        """All figures; documents, delays, the longest micro-batch and the time of planning are
        those of the epoch."""
        epoch = self.epoch
        return {
            **self.arriving.as_dict(),
            "makespan_ratio": self.makespan(ordered=True),
            "makespan_ratio_given_order": self.makespan(ordered=False),
            "last_iterations": self.last_steps,
            "token_delay_mean": epoch.token_delay_mean,
            "token_delay_max": epoch.token_delay_max,
            "max_tokens": epoch.max_tokens,
            "plan_ms": epoch.plan_ms,
            "documents_in": epoch.documents_in,
            "documents_out": epoch.documents_out,
            "documents_waiting": epoch.documents_waiting,
            "documents_cut": self.documents_cut,
            "thresholds": list(self.thresholds),
        }


def compare(
    lengths: Int64Array, *, context: int, micro_batches: int, cost: DocumentCost | None = None
) -> list[Packed]:
    """Original packing, WLB with two queues, and steady.

    Args:
        lengths: [documents] int64, each positive, in order of arrival.
        context: tokens of a window, and of a micro-batch on average.

    Raises:
        ConfigurationError: there is not even one global batch, or options are out of range.
        InvariantError: a token was not trained on once.
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
    wlb = PackingOptions(
        context=context,
        micro_batches=micro_batches,
        thresholds=auto_thresholds(pieces.lengths, context=context, queues=2, cost=cost),
        cost=cost,
    )
    steady = SteadyOptions(context=context, micro_batches=micro_batches, cost=cost)
    epochs = {
        "original": (windows, run_original(windows)),
        "WLB": (whole, run_planner(partial(plan_step, wlb), whole)),
        "steady": (whole, run_planner(partial(plan_step, steady), whole)),
    }
    packed = [_packed(name, *epoch, cost) for name, epoch in epochs.items()]
    packed[1] = dataclasses.replace(packed[1], thresholds=wlb.thresholds)
    return packed


def _packed(name: str, arrivals: ArrivingDocuments, epoch: Trained, cost: DocumentCost) -> Packed:
    times = np.bincount(epoch.piece, minlength=len(arrivals.pieces))
    if (times != 1).any() or (epoch.length != arrivals.pieces.lengths[epoch.piece]).any():
        raise InvariantError(f"{name} packing did not train on every token once")
    first = epoch.step < arrivals.complete
    arriving = dataclasses.replace(
        epoch,
        piece=epoch.piece[first],
        length=epoch.length[first],
        step=epoch.step[first],
        micro_batch=epoch.micro_batch[first],
    )
    return Packed(
        name=name,
        documents_cut=int((np.bincount(arrivals.pieces.documents) > 1).sum()),
        arriving=measure(arrivals, arriving, cost),
        epoch=measure(arrivals, epoch, cost),
    )
