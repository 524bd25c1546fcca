"""Packers of pretraining documents, run over a stream of lengths.

In each iteration one global batch of ``micro_batches * context`` tokens arrives, and the
micro-batches of one are trained on. A planner is asked once per iteration, with all that waits. A
packer of whole global batches gets one or more at a time, before the first of their iterations.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.exact_packing import exact_packing
from evenstep.plan.packing.fixed_length import fixed_length
from evenstep.plan.packing.pieces import Pieces
from evenstep.plan.packing.window_packing import cut_at_windows

__all__ = [
    "ArrivingDocuments",
    "Planner",
    "Trained",
    "run_exact",
    "run_fixed_length",
    "run_original",
    "run_planner",
]


Planner = Callable[[Int64Array, Int64Array, bool], Groups]
"""From lengths and ages of what waits, and whether nothing more comes, to micro-batches."""


@dataclass(frozen=True, kw_only=True)
class ArrivingDocuments:
    """A stream of documents, as it comes to a packer."""

    pieces: Pieces
    """What arrives, in order; each counts as a document."""
    batch: Int64Array
    """[pieces] the global batch, and so the iteration, with which each arrives; ascending."""
    context: int
    micro_batches: int
    complete: int
    """Global batches that are whole. What is left of the stream is the beginning of another."""
    windows: Int64Array | None = None
    """[pieces] number of the window that each is in, where documents were cut at windows."""

    @classmethod
    def of(
        cls, lengths: Int64Array, *, context: int, micro_batches: int, whole: bool = False
    ) -> ArrivingDocuments:
        """
        Args:
            lengths: [documents] int64 in order of arrival.
            whole: documents stay whole, and come with the global batch in which they begin. False
                cuts them where original packing does, so that all packers have the same pieces.
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
        """[complete + 2] first piece of each global batch, and at last the number of pieces."""
        first = np.searchsorted(self.batch, np.arange(self.complete + 1))
        return np.append(first, len(self.batch)).astype(np.int64)

    def spans(self, together: int, *, drain: bool) -> Iterator[tuple[int, int, int, int]]:
        """(first iteration, end, first piece, end) of every so many global batches. The incomplete
        one is among them where it is drained."""
        bounds = self.bounds
        batches = self.complete + (drain and int(bounds[-2]) < int(bounds[-1]))
        for begin in range(0, batches, together):
            end = min(begin + together, batches)
            yield begin, end, int(bounds[begin]), int(bounds[end])


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What was trained on, as [n] columns; a piece that a packer cut is in several rows."""

    piece: Int64Array
    """Position in the arrivals."""
    length: Int64Array
    iteration: Int64Array
    micro_batch: Int64Array
    """From 0 in each iteration."""
    seconds: float
    """Spent in planning, all iterations together."""
    statuses: Mapping[str, int] = field(default_factory=dict)
    """How many times the exact solver ended how."""


class _Record:
    """Rows of `Trained` as they come, and a clock."""

    def __init__(self) -> None:
        self.rows: list[tuple[Int64Array, Int64Array, Int64Array, Int64Array]] = []
        self.seconds = 0.0
        self._begun = 0.0

    def __enter__(self) -> None:
        self._begun = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begun

    def add(self, pieces: Int64Array, lengths: Int64Array, at: Int64Array, per: int) -> None:
        """`at` is the micro-batch of each, counted on through iterations of `per` micro-batches."""
        self.rows.append((pieces, lengths, at // per, at % per))

    def trained(self, statuses: Mapping[str, int] | None = None) -> Trained:
        none = np.empty(0, np.int64)
        columns = [np.concatenate(column) for column in zip(*self.rows)] or [none] * 4
        return Trained(
            piece=columns[0],
            length=columns[1],
            iteration=columns[2],
            micro_batch=columns[3],
            seconds=self.seconds,
            statuses=statuses or {},
        )


def _column(groups: Groups) -> Int64Array:
    """[members] the group of each."""
    return np.arange(len(groups), dtype=np.int64).repeat(groups.sizes)


def run_planner(
    planner: Planner,
    arrivals: ArrivingDocuments,
    *,
    end: str = "drain",
    begin: int = 0,
    waiting: Int64Array | None = None,
    stop: int | None = None,
) -> tuple[Trained, Int64Array]:
    """Asks a planner for every iteration, with all documents that wait.

    Args:
        end: "drain" goes on until everything is trained on. "carry" ends with the last complete
            global batch, and what waits is for the next epoch.
        begin: the first iteration to run, where `waiting` says what earlier ones have left.
        stop: the iteration to stop before, as if the run had been interrupted; None runs to the
            end.

    Returns:
        What was trained on, and [waiting] the pieces that wait, in order of arrival.

    Raises:
        ConfigurationError: `end` is neither.
        InvariantError: the planner plans nothing though documents wait.
    """
    if end not in ("drain", "carry"):
        raise ConfigurationError(f"end={end!r} must be drain or carry")
    lengths, bounds, record = arrivals.pieces.lengths, arrivals.bounds, _Record()
    pool = np.empty(0, np.int64) if waiting is None else waiting
    iteration = begin
    while stop is None or iteration < stop:
        final = iteration >= arrivals.complete
        if final and end == "carry":
            rest = np.arange(bounds[-2], bounds[-1], dtype=np.int64)
            return record.trained(), np.concatenate([pool, rest])
        if iteration <= arrivals.complete:
            new = np.arange(bounds[iteration], bounds[iteration + 1], dtype=np.int64)
            pool = np.concatenate([pool, new])
        if len(pool):
            ages = iteration - arrivals.batch[pool]
            with record:
                groups = planner(lengths[pool], ages, final)
            if not len(groups):
                raise InvariantError(f"nothing planned in iteration {iteration}")
            members = pool[groups.members]
            at = iteration * arrivals.micro_batches + _column(groups)
            record.add(members, lengths[members], at, arrivals.micro_batches)
            left = np.ones(len(pool), np.bool_)
            left[groups.members] = False
            pool = pool[left]
        elif final:
            break
        iteration += 1
    return record.trained(), pool


def run_original(arrivals: ArrivingDocuments, *, end: str = "drain") -> Trained:
    """Windows as they were cut."""
    windows, record = _windows(arrivals), _Record()
    for _, _, first, last in arrivals.spans(1, drain=end == "drain"):
        pieces = np.arange(first, last, dtype=np.int64)
        record.add(pieces, arrivals.pieces.lengths[pieces], windows[pieces], arrivals.micro_batches)
    return record.trained()


def run_fixed_length(
    arrivals: ArrivingDocuments, batches: int, *, workload: DocumentCost, end: str = "drain"
) -> Trained:
    """Greedy fixed-length packing over so many global batches at a time."""
    lengths, record = arrivals.pieces.lengths, _Record()
    for iteration, _, first, last in arrivals.spans(batches, drain=end == "drain"):
        with record:
            packed = fixed_length(lengths[first:last], arrivals.context, workload=workload)
        members = packed.windows.members
        at = iteration * arrivals.micro_batches + _column(packed.windows)
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
    workload: DocumentCost,
    max_tokens: int,
    time_limit: float,
    end: str = "drain",
) -> Trained:
    """The solver over so many global batches at a time, beginning from original packing.

    With ``max_tokens=context`` this is equation 1, where squared lengths are as good as work, as
    all micro-batches hold equally many tokens.
    """
    lengths, windows, record = arrivals.pieces.lengths, _windows(arrivals), _Record()
    statuses: Counter[str] = Counter()
    for iteration, stop, first, last in arrivals.spans(batches, drain=end == "drain"):
        part, begin = lengths[first:last], iteration * arrivals.micro_batches
        with record:
            packing = exact_packing(
                part,
                workload.of_documents(part),
                micro_batches=arrivals.micro_batches,
                max_tokens=max_tokens,
                iterations=stop - iteration,
                time_limit=time_limit,
                known=windows[first:last] - begin,
            )
        statuses[packing.status] += 1
        if packing.placed is None:
            raise InvariantError("the original packing is known, and none was returned")
        record.add(
            np.arange(first, last, dtype=np.int64),
            part,
            begin + packing.placed,
            arrivals.micro_batches,
        )
    return record.trained(statuses)


def _windows(arrivals: ArrivingDocuments) -> Int64Array:
    if arrivals.windows is None:
        raise ConfigurationError("packing into windows needs documents cut at windows: whole=False")
    return arrivals.windows
