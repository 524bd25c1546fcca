"""Packers of pretraining documents, run over a stream of lengths.

In each step one global batch of ``micro_batches * context`` tokens arrives, and `micro_batches`
micro-batches are trained on. A planner is called once per step, with all documents that wait. A
packer of whole global batches gets one or more at a time, before the first of their steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.papers.wlb.exact_packing import exact_packing
from benchmarks.papers.wlb.window_packing import cut_at_windows, fixed_length
from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.groups import Groups
from evenstep.plan.packing.pieces import Pieces
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.value_checks import check_at_least
from evenstep.tools.simulate.run import run_epoch

Planner = Callable[[Int64Array], Groups]
"""Lengths of the waiting documents to micro-batches."""


@dataclass(frozen=True, kw_only=True)
class ArrivingDocuments:
    """A stream of documents, as a packer receives it."""

    pieces: Pieces
    """The documents in order of arrival, or the parts that they were cut into."""
    batch: Int64Array
    """[pieces] global batch, and so step, in which each arrives; ascending."""
    context: int
    micro_batches: int
    complete: int
    """Whole global batches. The rest of the stream is the beginning of another one."""
    windows: Int64Array | None = None
    """[pieces] number of each piece's window, if documents were cut at windows."""

    @classmethod
    def of(
        cls, lengths: Int64Array, *, context: int, micro_batches: int, whole: bool = False
    ) -> ArrivingDocuments:
        """
        Args:
            lengths: [documents] int64 in order of arrival.
            whole: documents stay whole, and arrive with the global batch in which they begin. False
                cuts them where original packing does, so that all packers get the same pieces.
        """
        check_at_least(1, context=context, micro_batches=micro_batches)
        complete = int(lengths.sum()) // (context * micro_batches)
        if whole:
            batch = (lengths.cumsum() - lengths) // (context * micro_batches)
            windows, pieces = None, Pieces.whole(lengths)
        else:
            cut = cut_at_windows(lengths, context)
            windows = np.arange(len(cut.windows), dtype=np.int64).repeat(cut.windows.sizes)
            batch, pieces = windows // micro_batches, cut.pieces
        return cls(
            pieces=pieces,
            batch=batch,
            context=context,
            micro_batches=micro_batches,
            complete=complete,
            windows=windows,
        )

    @property
    def bounds(self) -> Int64Array:
        """[complete + 2] first piece of each global batch, and last the number of pieces."""
        first = np.searchsorted(self.batch, np.arange(self.complete + 1))
        return np.append(first, len(self.batch)).astype(np.int64)

    def spans(self, together: int, *, drain: bool) -> Iterator[tuple[int, int, int, int]]:
        """(first step, end, first piece, end) of every `together` global batches. `drain` includes
        the incomplete one."""
        bounds = self.bounds
        batches = self.complete + (drain and int(bounds[-2]) < int(bounds[-1]))
        for begin in range(0, batches, together):
            end = min(begin + together, batches)
            yield begin, end, int(bounds[begin]), int(bounds[end])


@dataclass(frozen=True, kw_only=True)
class Trained:
    """The pieces trained on, as [n] columns; a piece that a packer cut has several rows."""

    piece: Int64Array
    """Position in the stream."""
    length: Int64Array
    step: Int64Array
    micro_batch: Int64Array
    """Number within the step, from 0."""
    seconds: float
    """Time spent in planning, all steps together."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """Number of times that the exact solver ended with each status."""


class _Record:
    """Collects the rows of `Trained`, and times the planning."""

    def __init__(self) -> None:
        self.rows: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
        self.seconds = 0.0
        self._started = 0.0

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._started

    def add(self, pieces: Int64Array, lengths: Int64Array, at: Int64Array, per: int) -> None:
        """Adds pieces in the micro-batches `at`, numbered through all steps, `per` in each."""
        self.rows.append((pieces, lengths, at // per, at % per))

    def trained(self, statuses: Mapping[str, int] | None = None) -> Trained:
        none = np.empty(0, np.int64)
        columns = [np.concatenate(column) for column in zip(*self.rows)] or [none] * 4
        return Trained(
            piece=columns[0],
            length=columns[1],
            step=columns[2],
            micro_batch=columns[3],
            seconds=self.seconds,
            statuses=statuses or {},
        )


def _column(groups: Groups) -> Int64Array:
    """[members] group of each member."""
    return np.arange(len(groups), dtype=np.int64).repeat(groups.sizes)


def run_planner(planner: Planner, arrivals: ArrivingDocuments) -> Trained:
    """Calls a planner once per step, with all documents that wait, up to the last complete global
    batch. What waits then is not trained on.

    Raises:
        InvariantError: the planner plans nothing although documents wait.
    """
    lengths, bounds, record = arrivals.pieces.lengths, arrivals.bounds, _Record()
    pool = np.empty(0, np.int64)
    for step in range(arrivals.complete):
        new = np.arange(bounds[step], bounds[step + 1], dtype=np.int64)
        pool = np.concatenate([pool, new])
        with record:
            groups = planner(lengths[pool])
        if not len(groups):
            raise InvariantError(f"nothing planned in step {step}")
        members = pool[groups.members]
        at = step * arrivals.micro_batches + _column(groups)
        record.add(members, lengths[members], at, arrivals.micro_batches)
        left = np.ones(len(pool), np.bool_)
        left[groups.members] = False
        pool = pool[left]
    return record.trained()


def run_evenstep(
    arrivals: ArrivingDocuments, *, cost: DocumentCost, end: str = "drain", **options: Any
) -> Trained:
    """`WorkloadPacking` on one rank, whose window looks a few global batches ahead.

    Args:
        end: "carry" leaves out the steps that are planned once the stream has ended.
        options: of the policy.
    """
    policy = WorkloadPacking(
        arrivals.context, micro_batches=arrivals.micro_batches, cost=cost, **options
    )
    epoch = run_epoch(policy, [arrivals.pieces.lengths])
    (rank,) = epoch.ranks
    record = _Record()
    record.seconds = epoch.plan_seconds
    for step in rank.steps:
        if end == "carry" and step.index >= rank.arrival_steps[-1]:
            break
        for number, members in enumerate(step.micro_batches):
            at = np.full(len(members), step.index * arrivals.micro_batches + number)
            record.add(members, rank.lengths[members], at, arrivals.micro_batches)
    return record.trained()


def run_original(arrivals: ArrivingDocuments, *, end: str = "drain") -> Trained:
    """Original packing: the windows as they were cut."""
    windows, record = _windows(arrivals), _Record()
    for _, _, first, last in arrivals.spans(1, drain=end == "drain"):
        pieces = np.arange(first, last, dtype=np.int64)
        record.add(pieces, arrivals.pieces.lengths[pieces], windows[pieces], arrivals.micro_batches)
    return record.trained()


def run_fixed_length(
    arrivals: ArrivingDocuments, batches: int, *, cost: DocumentCost, end: str = "drain"
) -> Trained:
    """Greedy fixed-length packing over `batches` global batches at a time."""
    lengths, record = arrivals.pieces.lengths, _Record()
    for step, _, first, last in arrivals.spans(batches, drain=end == "drain"):
        with record:
            packed = fixed_length(lengths[first:last], arrivals.context, cost=cost)
        members = packed.windows.members
        at = step * arrivals.micro_batches + _column(packed.windows)
        record.add(
            packed.pieces.documents[members] + first,
            packed.pieces.lengths[members],
            at,
            arrivals.micro_batches,
        )
    return record.trained()


def run_exact(
    arrivals: ArrivingDocuments,
    batches: int,
    *,
    cost: DocumentCost,
    max_tokens: int,
    time_limit: float,
    end: str = "drain",
) -> Trained:
    """The exact solver over `batches` global batches at a time, starting from original packing.

    With ``max_tokens=context`` this is equation 1 of WLB-LLM: all micro-batches then hold equally
    many tokens, and squared lengths rank them as the cost does.
    """
    lengths, windows, record = arrivals.pieces.lengths, _windows(arrivals), _Record()
    statuses: Counter[str] = Counter()
    for step, stop, first, last in arrivals.spans(batches, drain=end == "drain"):
        part, begin = lengths[first:last], step * arrivals.micro_batches
        with record:
            packing = exact_packing(
                part,
                cost.of_documents(part),
                micro_batches=arrivals.micro_batches,
                max_tokens=max_tokens,
                steps=stop - step,
                time_limit=time_limit,
                known=windows[first:last] - begin,
            )
        statuses[packing.status] += 1
        if packing.placed is None:
            raise InvariantError("the solver was given the original packing and returned none")
        record.add(
            np.arange(first, last, dtype=np.int64),
            part,
            begin + packing.placed,
            arrivals.micro_batches,
        )
    return record.trained(statuses)


def _windows(arrivals: ArrivingDocuments) -> Int64Array:
    if arrivals.windows is None:
        raise ConfigurationError(
            "packing into windows needs documents that are cut at windows; give whole=False"
        )
    return arrivals.windows
