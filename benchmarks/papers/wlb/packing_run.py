"""Packers of pretraining documents, run over a stream of lengths.

In each step one global batch of ``micro_batches * context`` tokens arrives, and `micro_batches`
micro-batches are trained on, up to the last global batch that is complete. Documents are cut where
original packing does, so that all packers get the same pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups import Groups
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.tools.simulate.run import run_epoch

Planner = Callable[[Int64Array], Groups]
"""Lengths of the waiting documents to micro-batches."""


def cut_at_windows(lengths: Int64Array, context: int) -> tuple[Int64Array, Int64Array]:
    """Original packing: documents are laid end to end and cut at every window. What a cut leaves
    of a document begins the next window as another document.

    Returns:
        [pieces] tokens of each, and [pieces] its window.
    """
    ends = lengths.cumsum()
    begins = np.union1d(ends - lengths, np.arange(0, ends[-1], context))
    return np.diff(np.append(begins, ends[-1])), begins // context


@dataclass(frozen=True)
class Stream:
    """Documents as a packer receives them."""

    lengths: Int64Array
    """[pieces] tokens, in order of arrival."""
    windows: Int64Array
    """[pieces] the window of each in original packing."""
    context: int
    micro_batches: int

    @classmethod
    def of(cls, lengths: Int64Array, *, context: int, micro_batches: int) -> Stream:
        return cls(*cut_at_windows(lengths, context), context, micro_batches)

    @property
    def complete(self) -> int:
        """Whole global batches."""
        return int(self.lengths.sum()) // (self.context * self.micro_batches)

    @property
    def bounds(self) -> Int64Array:
        """[complete + 1] first piece of each global batch, and the end of the last."""
        steps = np.arange(self.complete + 1) * self.micro_batches
        return np.searchsorted(self.windows, steps).astype(np.int64)


@dataclass(frozen=True)
class Packed:
    """What a packer has made of a stream: [n] columns of the pieces trained on."""

    stream: Stream
    piece: Int64Array
    """Position in the stream."""
    at: Int64Array
    """Micro-batch, counted through all steps."""
    seconds: float = 0.0
    """Of planning, all steps together."""

    @cached_property
    def documents(self) -> list[Int64Array]:
        """[steps x micro_batches] lengths of the documents of each micro-batch."""
        per_step, order = self.stream.micro_batches, self.at.argsort(kind="stable")
        count = (int(self.at.max()) // per_step + 1) * per_step
        ends = np.bincount(self.at, minlength=count).cumsum()
        return np.split(self.stream.lengths[self.piece[order]], ends[:-1])

    def imbalance(self, cost: DocumentCost) -> float:
        """Mean over steps of largest cost x micro-batches / total cost: WLB-LLM's degree."""
        costs = np.array([cost.of_documents(each).sum() for each in self.documents])
        steps = costs.reshape(-1, self.stream.micro_batches)
        return float((steps.max(axis=1) / steps.mean(axis=1)).mean())


def run_original(stream: Stream) -> Packed:
    """Original packing: the windows as they were cut."""
    pieces = np.arange(stream.bounds[-1], dtype=np.int64)
    return Packed(stream, pieces, stream.windows[pieces])


def run_planner(planner: Planner, stream: Stream) -> Packed:
    """Calls a planner once per step, with all documents that wait."""
    pool, pieces, at = np.empty(0, np.int64), [], []
    seconds = 0.0
    for step in range(stream.complete):
        pool = np.append(pool, np.arange(*stream.bounds[step : step + 2]))
        begin = time.perf_counter()
        groups = planner(stream.lengths[pool])
        seconds += time.perf_counter() - begin
        pieces.append(pool[groups.members])
        at.append(step * stream.micro_batches + np.arange(len(groups)).repeat(groups.sizes))
        pool = np.delete(pool, groups.members)
    return Packed(stream, np.concatenate(pieces), np.concatenate(at), seconds)


def run_evenstep(stream: Stream, cost: DocumentCost) -> Packed:
    """`WorkloadPacking` on one rank, whose window looks a few global batches ahead, without the
    steps that are planned once the stream has ended."""
    policy = WorkloadPacking(stream.context, micro_batches=stream.micro_batches, cost=cost)
    epoch = run_epoch(policy, [stream.lengths])
    (rank,) = epoch.ranks
    made = [
        (members, step.index * stream.micro_batches + number)
        for step in rank.steps
        if step.index < rank.arrival_steps[-1]
        for number, members in enumerate(step.micro_batches)
    ]
    sizes = [len(members) for members, _ in made]
    at = np.array([number for _, number in made]).repeat(sizes)
    return Packed(stream, np.concatenate([m for m, _ in made]), at, epoch.plan_seconds)
