"""`SourceQueues`: the samples that a step may draw of each source, in the order in which they come.

Of each source first those that have waited and are admitted now, then those from the cursor on;
what is too long is passed over. There may be hundreds of sources, so all of them are looked at
together. Looking changes nothing: `taken` tells what is different after some were drawn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Int64Array
from evenstep.errors import InvariantError, SampleError
from evenstep.strategy.sample_table import Metadata, SampleTable, ahead_of_many

__all__ = ["UNKNOWN", "Admission", "SourceQueues", "Taken", "by_source"]


UNKNOWN = 1 << 62
"""Samples that remain of a source whose size is not known, or which begins again."""
_FEW = 1 << 15


@dataclass(frozen=True, kw_only=True)
class Admission:
    """What is drawn at all in a step."""

    tokens: Callable[[SampleTable], Int64Array]
    limit: int | None = None
    """Tokens of the longest sample; None is no limit."""
    max_waiting: int = 0
    """Samples of a source that may be passed over, those that wait already among them."""

    def admits(self, tokens: Int64Array) -> BoolArray:
        """Whether each is short enough."""
        if self.limit is None:
            return np.ones(len(tokens), np.bool_)
        admitted: BoolArray = tokens <= self.limit
        return admitted


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The sources after some of their lines was drawn."""

    samples: SampleTable
    """By source, of each in the order of its line."""
    cursors: Int64Array
    waiting: SampleTable
    """By source and position."""


class SourceQueues:
    """See the module docstring. Arrays are [sources]."""

    def __init__(
        self,
        provider: Metadata,
        *,
        live: BoolArray,
        cursors: Int64Array,
        waiting: SampleTable,
        admission: Admission,
        remaining: Int64Array,
        endless: bool,
    ) -> None:
        """
        Args:
            live: which sources have a line; of the others nothing is asked for.
            cursors: position of the first sample that was never looked at.
            waiting: samples that were too long so far, by source and position.
            remaining: samples from the cursor on, or `UNKNOWN`.
            endless: sources begin again where they end.
        """
        self.live = live
        self._provider, self._names = provider, waiting.sources
        self._cursors, self._waiting, self._remaining = cursors, waiting, remaining
        self._admission, self._endless = admission, endless
        # One sample more than is wanted is asked for where only that tells that a source ends.
        self._peeks = ((remaining == UNKNOWN) & (not endless)).astype(np.int64)
        self._tables = [waiting] if len(waiting) else []
        self._passed = waiting.counts()  # of those looked at, not admitted
        self._admitted: Int64Array = np.zeros(len(live), np.int64)
        self._seen: Int64Array = np.zeros(len(live), np.int64)  # from the cursor on
        self._over: BoolArray = remaining == 0
        self._sorted: _Sorted | None = None
        if len(waiting):
            self._admit(waiting)

    def reach(self, counts: Int64Array) -> Int64Array:
        """Looks so far ahead that there are so many samples of each, if there are.

        Returns:
            How many there are: less than asked for only where there will be no more in this step.

        Raises:
            SampleError: more than `max_waiting` samples are too long, or a source has ended that
                is to begin again.
        """
        wanted = np.where(counts > 0, counts + self._peeks, 0)
        while True:
            short = np.flatnonzero((self._admitted < wanted) & ~self._over)
            if not len(short):
                return np.array(self._admitted)
            self._look(short, (wanted - self._admitted)[short])

    def _look(self, sources: Int64Array, counts: Int64Array) -> None:
        limit = self._admission.limit
        if limit is not None:
            counts = counts + counts // 2 + 8  # some will be too long
        counts = np.minimum(counts, (self._remaining - self._seen)[sources])
        begins = (self._cursors + self._seen)[sources]
        table = ahead_of_many(self._provider, sources, begins, counts)
        given = table.counts()
        got = given[sources]
        self._check_given(table, sources, begins, counts, got)
        ended = got < counts
        if self._endless and ended.any():
            first = int(ended.argmax())
            raise SampleError(
                f"source {self._names[sources[first]]!r} has ended at position "
                f"{begins[first] + got[first]:,}, and the stop rule reads sources again and again; "
                "make it go on with its next pass, or choose stop='first_exhausted' or "
                "'all_exhausted'"
            )
        self._seen += given
        self._over[sources] = ended | (self._seen == self._remaining)[sources]
        self._tables.append(table)
        self._sorted = None
        self._passed += given
        self._admit(table)
        many = self._passed[sources] > self._admission.max_waiting
        if limit is not None and many.any():
            source = sources[int(many.argmax())]
            raise SampleError(
                f"{self._passed[source]:,} samples of source {self._names[source]!r} are longer "
                f"than the {limit:,} tokens that the curriculum admits, and max_waiting="
                f"{self._admission.max_waiting:,}; begin with a higher limit, leave long samples "
                "out of the source, or raise max_waiting"
            )

    def _admit(self, table: SampleTable) -> None:
        counts = table.counts()
        if self._admission.limit is not None:
            admitted = self._admission.admits(self._admission.tokens(table))
            counts = np.bincount(table.source[admitted], minlength=len(self._admitted))
        self._admitted += counts
        self._passed -= counts

    def _check_given(
        self,
        table: SampleTable,
        sources: Int64Array,
        begins: Int64Array,
        counts: Int64Array,
        got: Int64Array,
    ) -> None:
        right = len(table) == got.sum() and bool((got <= counts).all())
        if right:
            places = np.arange(len(table)) - (got.cumsum() - got).repeat(got)
            right = np.array_equal(table.source, sources.repeat(got)) and np.array_equal(
                table.position, begins.repeat(got) + places
            )
        if right:
            return
        for source, begin, count in zip(sources.tolist(), begins.tolist(), counts.tolist()):
            positions = table.position[table.source == source]
            end = begin + len(positions)
            if len(positions) > count or not np.array_equal(positions, np.arange(begin, end)):
                raise InvariantError(
                    f"asked for {count} samples of source {self._names[source]!r} from position "
                    f"{begin}, and got {len(positions)}, of positions {positions[:1]} to "
                    f"{positions[-1:]}"
                )
        raise InvariantError(
            f"asked for samples of sources {sources.tolist()}, and got some of others, or not one "
            "source after the other"
        )

    @property
    def stuck(self) -> BoolArray:
        """Whether samples are left that no step with this limit draws."""
        stuck: BoolArray = self._over & (self._passed > 0)
        return stuck

    def over_after(self, counts: Int64Array) -> BoolArray:
        """Whether nothing is left once so many were drawn."""
        over: BoolArray = self._over & (self._passed == 0) & (counts >= self._admitted)
        return self.live & over

    def waiting_by_name(self) -> dict[str, int]:
        """Samples that waited when the step began."""
        counts = self._waiting.counts().tolist()
        return {self._names[s]: counts[s] for s in np.flatnonzero(self.live)}

    def lengths(self, counts: Int64Array) -> Int64Array:
        """[sum of counts] tokens of the first samples of each, which were reached, by source."""
        whole = self._all()
        return whole.tokens[whole.first(counts)]

    def taken(self, counts: Int64Array) -> Taken:
        """After the first so many of each, which were reached, are drawn."""
        whole = self._all()
        rows = whole.first(counts)
        samples = whole.table[rows]
        cursors = self._cursors.copy()
        drawn = np.flatnonzero(counts)
        last = samples.position[counts.cumsum()[drawn] - 1]
        cursors[drawn] = np.maximum(cursors[drawn], last + 1)  # the last may have waited
        waiting = self._waiting
        if len(waiting) or self._admission.limit is not None:
            left = whole.table.position < cursors[whole.table.source]
            left[rows] = False
            waiting = whole.table[left]
        return Taken(samples=samples, cursors=cursors, waiting=waiting)

    def _all(self) -> _Sorted:
        if self._sorted is None:
            tables = [table for table in self._tables if len(table)] or [self._waiting]
            table = tables[0]
            if len(tables) > 1:
                table = SampleTable.concatenate(tables)
                table = table[by_source(table.source, len(self._names))]
            self._tables = [table]
            tokens = self._admission.tokens(table)
            places = np.flatnonzero(self._admission.admits(tokens))
            self._sorted = _Sorted(table, tokens, places, self._admitted.cumsum() - self._admitted)
        return self._sorted


@dataclass(frozen=True)
class _Sorted:
    """All that was looked at, source after source, of each in the order of its line."""

    table: SampleTable
    tokens: Int64Array
    admitted: Int64Array
    """Rows of those that are admitted."""
    begins: Int64Array
    """[sources] of `admitted`, where those of each begin."""

    def first(self, counts: Int64Array) -> Int64Array:
        """Rows of the first so many admitted ones of each source."""
        shift = self.begins - (counts.cumsum() - counts)
        rows: Int64Array = self.admitted[np.arange(counts.sum()) + shift.repeat(counts)]
        return rows


def by_source(source: npt.NDArray[np.integer[Any]], sources: int) -> Int64Array:
    """[samples] positions sorted by number of source, ties as they come."""
    # Sixteen bits are sorted by radix, many times as fast.
    narrow = source.astype(np.int16) if sources <= _FEW else source
    return narrow.argsort(kind="stable")
