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
    documents: int
    """Pieces of one document counted once."""
    documents_cut: int
    """Documents in which some token cannot attend to all tokens before it."""
    arriving: PackingResult
    """The steps in which documents arrive."""
    epoch: PackingResult
    """All steps. A step with too few documents left has empty micro-batches."""
    makespan: float
    """Time of 1F1B on four stages, over that with micro-batches of equal cost, each step in the
    order that suits it; of the steps in which documents arrive."""
    makespan_given: float
    """`makespan` in the order in which the packer yields micro-batches."""
    thresholds: tuple[int, ...] = ()
    """Thresholds of WLB's queues."""

    @property
    def last_steps(self) -> int:
        """Steps after the last whole global batch has arrived."""
        return self.epoch.steps - self.arriving.steps

    def as_dict(self) -> dict[str, Any]:
        """All figures; documents, delays and the longest micro-batch are those of the epoch."""
        epoch = self.epoch
        return {
            **self.arriving.as_dict(),
            "makespan_ratio": self.makespan,
            "makespan_ratio_given_order": self.makespan_given,
            "imbalance_time_weighted_epoch": epoch.imbalance_time_weighted,
            "last_iterations": self.last_steps,
            "token_delay_mean": epoch.token_delay_mean,
            "token_delay_max": epoch.token_delay_max,
            "max_tokens": epoch.max_tokens,
            "documents_in": epoch.documents_in,
            "documents_out": epoch.documents_out,
            "documents_waiting": epoch.documents_waiting,
            "documents_cut": self.documents_cut,
            "thresholds": list(self.thresholds),
        }


def compare(
    lengths: Int64Array,
    *,
    context: int,
    micro_batches: int,
    queues: tuple[int, ...] = (2,),
    max_tokens: int | None = None,
    cost: DocumentCost | None = None,
) -> list[Packed]:
    """Original packing, WLB with each number of queues, and steady.

    Args:
        lengths: [documents] int64, each positive, in order of arrival.
        context: tokens of a window, and of a micro-batch on average.
        max_tokens: see `PackingOptions`.

    Raises:
        ConfigurationError: there is not even one global batch, or options are out of range.
        InvariantError: a token was not trained on once.
    """
    cost = cost or DocumentCost()
    plain = PackingOptions(
        context=context, micro_batches=micro_batches, max_tokens=max_tokens, cost=cost
    )
    total = int(lengths.sum())
    if total < context * micro_batches:
        raise ConfigurationError(
            f"{len(lengths):,} documents of {total:,} tokens are less than one step of "
            f"micro_batches={micro_batches} times context={context:,}; give more text, or a "
            "smaller context"
        )
    windows = ArrivingDocuments.of(lengths, context=context, micro_batches=micro_batches)
    results = [
        _packed(
            "original", windows, run_original(windows, end="carry"), run_original(windows), cost
        )
    ]
    pieces = cut_long(lengths, context, "split")
    whole = ArrivingDocuments.of(
        pieces.lengths, context=context, micro_batches=micro_batches, whole=True
    )
    # Positions are those of documents, so that pieces of one are known.
    whole = dataclasses.replace(whole, pieces=pieces)
    for count in queues:
        thresholds = auto_thresholds(pieces.lengths, context=context, queues=count, cost=cost)
        options = dataclasses.replace(plain, thresholds=thresholds)
        name = "WLB" if len(queues) == 1 else f"WLB, {count} queue{'s' * (count > 1)}"
        results.append(_planned(name, options, whole))
    steady = SteadyOptions(
        context=context, micro_batches=micro_batches, max_tokens=max_tokens, cost=cost
    )
    results.append(_planned("steady", steady, whole))
    return results


def _planned(name: str, options: PackingOptions, arrivals: ArrivingDocuments) -> Packed:
    planner = partial(plan_step, options)
    first, waiting = run_planner(planner, arrivals, stop=arrivals.complete)
    last, _ = run_planner(planner, arrivals, begin=arrivals.complete, waiting=waiting)
    packed = _packed(name, arrivals, first, _joined(first, last), options.cost)
    return dataclasses.replace(packed, thresholds=options.thresholds)


def _joined(first: Trained, last: Trained) -> Trained:
    return Trained(
        piece=np.concatenate([first.piece, last.piece]),
        length=np.concatenate([first.length, last.length]),
        step=np.concatenate([first.step, last.step]),
        micro_batch=np.concatenate([first.micro_batch, last.micro_batch]),
        seconds=first.seconds + last.seconds,
    )


def _packed(
    name: str,
    arrivals: ArrivingDocuments,
    arriving: Trained,
    epoch: Trained,
    cost: DocumentCost,
) -> Packed:
    times = np.bincount(epoch.piece, minlength=len(arrivals.pieces))
    if (times != 1).any() or (epoch.length != arrivals.pieces.lengths[epoch.piece]).any():
        raise InvariantError(f"{name} packing did not train on every token once")
    steady_state = measure(arrivals, arriving, cost)
    pieces = np.bincount(arrivals.pieces.documents)
    return Packed(
        name=name,
        documents=len(pieces),
        documents_cut=int((pieces > 1).sum()),
        arriving=steady_state,
        epoch=measure(arrivals, epoch, cost),
        makespan=makespan_ratio(steady_state.costs),
        makespan_given=makespan_ratio(steady_state.costs, ordered=False),
    )
