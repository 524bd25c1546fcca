"""`SourceQueues`: the samples that a step may draw from each source, in the order of its queue.

A source's queue holds first the samples that have waited and are admitted in this step, then those
from its cursor on; a sample that is too long is passed over, and waits. One that its provider calls
bad is passed over for good. There may be hundreds of
sources, so all are handled together, as [sources] arrays. Looking ahead changes nothing: `taken`
returns what differs after the first samples of each queue were drawn.

Two sources under a limit of 10 tokens; the cursor of a is 4 and its sample 2 waits:

    source  samples by position (tokens)                 queue
    a       2 (8), waiting   4 (5)   5 (12)   6 (9)      2 4 6    5 is too long
    b       0 (3)   1 (4)                                0 1

    look_ahead([3, 1])       -> [3, 2]      reads a little further, as some may be too long
    lengths([3, 1])          -> [8, 5, 9, 3]
    taken([3, 1]).cursors    -> [7, 1]      and taken([3, 1]).waiting is sample 5 of a
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Int64Array
from evenstep.errors import InvariantError, SampleError
from evenstep.mixture.mixture_options import UNKNOWN, Options
from evenstep.mixture.sample_table import Metadata, SampleTable, look_ahead

_FITS_INT16 = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The samples drawn from the queues, and the sources after that."""

    samples: SampleTable
    """By source, and for each source in the order of its queue."""
    cursors: Int64Array
    waiting: SampleTable
    """By source and position."""
    bad: SampleTable
    """By source and position, those that were passed over for good."""


class SourceQueues:
    """See the module docstring. Arrays are [sources]."""

    def __init__(
        self,
        provider: Metadata,
        options: Options,
        *,
        active: BoolArray,
        cursors: Int64Array,
        waiting: SampleTable,
        step: int,
    ) -> None:
        """
        Args:
            provider: gives the samples of a source from a position on.
            options: of the mixture.
            active: sources that may be drawn; nothing is asked of the others.
            cursors: position of the first sample that was never looked at.
            waiting: samples that were too long so far, by source and position.
            step: that draws.
        """
        curriculum, endless = options.curriculum, options.repeats
        # From the cursor to the end.
        remaining = np.full(len(active), UNKNOWN) if endless else options.left_of_pass(cursors)
        self.active = active
        self._provider, self._names = provider, waiting.sources
        self._cursors, self._waiting, self._remaining = cursors, waiting, remaining
        self._tokens, self._endless = options.tokens, endless
        self._limit = None if curriculum is None else curriculum.limit(step)
        """Tokens of the longest sample that may be drawn; None means no limit."""
        self._max_waiting = 0 if curriculum is None else curriculum.max_waiting
        # The end of a source of unknown size shows only when one sample more is asked for.
        self._spare = ((remaining == UNKNOWN) & (not endless)).astype(np.int64)
        self._tables = [waiting] if len(waiting) else []
        self._seen: Int64Array = np.zeros(len(active), np.int64)  # read, from the cursor on
        self._at_end: BoolArray = remaining == 0  # nothing is left to read
        self._too_long = waiting.counts()  # read or waiting, and not admitted
        self._queued: Int64Array = np.zeros(len(active), np.int64)  # read or waiting, and admitted
        self._any_bad = False
        self._sorted: _Sorted | None = None
        if len(waiting):
            self._enqueue(waiting)

    # Looking ahead

    def look_ahead(self, counts: Int64Array) -> Int64Array:
        """Reads metadata until each queue has `counts` samples or its source has no more.

        Returns:
            Samples in each queue. Fewer than `counts` means that this step has no more of them.

        Raises:
            SampleError: more than `max_waiting` samples are too long, or a source that is to begin
                again has ended.
        """
        wanted = np.where(counts > 0, counts + self._spare, 0)
        while True:
            short = np.flatnonzero((self._queued < wanted) & ~self._at_end)
            if not len(short):
                return np.array(self._queued)
            self._read(short, (wanted - self._queued)[short])

    @property
    def blocked(self) -> BoolArray:
        """Whether a source has only samples left that are too long for this step."""
        blocked: BoolArray = self._at_end & (self._too_long > 0)
        return blocked

    def exhausted_after(self, counts: Int64Array) -> BoolArray:
        """Whether nothing at all is left of an active source after `counts` samples were drawn."""
        empty: BoolArray = self._at_end & (self._too_long == 0) & (counts >= self._queued)
        return self.active & empty

    def bad_within(self, counts: Int64Array) -> Int64Array:
        """Bad samples among those that were read of the first `counts` from the cursor on."""
        if not self._any_bad:
            return np.zeros_like(counts)
        table = self._in_order().table
        within = table.position < (self._cursors + counts)[table.source]
        return np.bincount(table.source[table.bad & within], minlength=len(counts))

    def waiting_by_name(self) -> dict[str, int]:
        """Samples that waited when the step began."""
        counts = self._waiting.counts().tolist()
        return {self._names[s]: counts[s] for s in np.flatnonzero(self.active)}

    # The first samples of each queue, all of which were looked ahead to

    def lengths(self, counts: Int64Array) -> Int64Array:
        """[sum of counts] tokens of the first `counts` samples of each queue, by source."""
        queues = self._in_order()
        return queues.tokens[queues.first(counts)]

    def taken(self, counts: Int64Array) -> Taken:
        """The first `counts` samples of each queue, and the sources without them."""
        queues = self._in_order()
        rows = queues.first(counts)
        samples = queues.table[rows]
        cursors = self._cursors.copy()
        drawn = np.flatnonzero(counts)  # sources
        last = samples.position[counts.cumsum()[drawn] - 1]
        cursors[drawn] = np.maximum(cursors[drawn], last + 1)  # the last one may have waited
        waiting, bad = self._waiting, queues.table[:0]
        if len(waiting) or self._limit is not None or self._any_bad:
            done = self.exhausted_after(counts)  # and bad ones at the end are done with, too
            cursors[done] = (self._cursors + self._seen)[done]
            left = queues.table.position < cursors[queues.table.source]  # passed over ...
            left[rows] = False  # ... and not drawn
            waiting, bad = queues.table[left & ~queues.bad], queues.table[left & queues.bad]
        return Taken(samples=samples, cursors=cursors, waiting=waiting, bad=bad)

    # Reading metadata

    def _read(self, sources: Int64Array, counts: Int64Array) -> None:
        """Reads the next samples of some sources.

        Args:
            sources: [n] their numbers, ascending.
            counts: [n] samples that the queue of each lacks.
        """
        limit = self._limit
        if limit is not None:
            counts = counts + counts // 2 + 8  # some will be too long
        counts = np.minimum(counts, (self._remaining - self._seen)[sources])
        begins = (self._cursors + self._seen)[sources]  # [n] positions
        table = look_ahead(self._provider, sources, begins, counts)
        given = table.counts()  # [sources]
        got = given[sources]  # [n]
        asked: tuple[Int64Array, Int64Array] | None = None
        if len(table) == got.sum() and (got <= counts).all():
            within = np.arange(len(table)) - (got.cumsum() - got).repeat(got)  # 0, 1, ... by source
            asked = sources.repeat(got), begins.repeat(got) + within
        if asked is None or not np.array_equal((table.source, table.position), asked):
            names = [self._names[source] for source in sources.tolist()]
            raise InvariantError(
                f"asked for {counts.tolist()} samples of sources {names} from positions "
                f"{begins.tolist()}, and got others, or not one source after the other: of sources "
                f"{table.source[:5].tolist()}..., positions {table.position[:5].tolist()}..."
            )
        ended = got < counts
        if self._endless and ended.any():
            first = int(ended.argmax())
            raise SampleError(
                f"source {self._names[sources[first]]!r} has ended at position "
                f"{begins[first] + got[first]:,}, and the stop rule reads sources again and again; "
                "make it continue with its next pass, or choose stop='first_exhausted' or "
                "'all_exhausted'"
            )
        self._seen += given
        self._at_end[sources] = ended | (self._seen == self._remaining)[sources]
        self._tables.append(table)
        self._sorted = None
        self._too_long += given
        self._enqueue(table)
        over = self._too_long[sources] > self._max_waiting
        if limit is not None and over.any():
            source = sources[int(over.argmax())]
            raise SampleError(
                f"{self._too_long[source]:,} samples of source {self._names[source]!r} are longer "
                f"than the {limit:,} tokens that the curriculum admits, over max_waiting="
                f"{self._max_waiting:,}; begin with a higher limit, exclude long samples "
                "from the source, or raise max_waiting"
            )

    def _enqueue(self, table: SampleTable) -> None:
        """Counts the admitted samples of a table as queued; so far all counted as too long."""
        counts, bad = table.counts(), table.bad
        if bad.any():
            self._any_bad = True
            counts = np.bincount(table.source[~bad], minlength=len(self._queued))
            self._too_long -= table.counts() - counts
        if self._limit is not None:
            admitted = (self._tokens(table) <= self._limit) & ~bad
            counts = np.bincount(table.source[admitted], minlength=len(self._queued))
        self._queued += counts
        self._too_long -= counts

    def _in_order(self) -> _Sorted:
        if self._sorted is None:
            tables = [table for table in self._tables if len(table)] or [self._waiting]
            table = tables[0]
            if len(tables) > 1:
                table = SampleTable.concatenate(tables)
                table = table[by_source(table.source, len(self._names))]
            self._tables = [table]
            tokens = self._tokens(table)
            bad = table.bad
            short = ~bad if self._limit is None else (tokens <= self._limit) & ~bad
            admitted = np.flatnonzero(short)
            begins = self._queued.cumsum() - self._queued
            self._sorted = _Sorted(table, tokens, bad, admitted, begins)
        return self._sorted


@dataclass(frozen=True)
class _Sorted:
    """All samples that wait or were read, source after source, each in the order of its queue."""

    table: SampleTable
    tokens: Int64Array
    """[samples] of the table."""
    bad: BoolArray
    """[samples] of the table."""
    admitted: Int64Array
    """[queued] rows of the table: all queues, one after the other."""
    begins: Int64Array
    """[sources] where the queue of each begins in `admitted`."""

    def first(self, counts: Int64Array) -> Int64Array:
        """[sum of counts] rows of the first samples of each queue."""
        # Entry k of the result belongs to a source whose entries begin at (cumsum - counts).
        shift = self.begins - (counts.cumsum() - counts)  # [sources]
        rows: Int64Array = self.admitted[np.arange(counts.sum()) + shift.repeat(counts)]
        return rows


def by_source(source: npt.NDArray[np.integer[Any]], sources: int) -> Int64Array:
    """[samples] indices that sort by number of source and keep the order within each."""
    # NumPy sorts 16 bits by radix, many times as fast.
    narrow = source.astype(np.int16) if sources <= _FITS_INT16 else source
    return narrow.argsort(kind="stable")
