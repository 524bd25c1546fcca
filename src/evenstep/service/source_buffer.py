"""`SourceBuffer`: a source's samples in order, read and prepared ahead of those who draw them.

A window of positions is known: what lies in it is measured, and prepared samples are held until
they are taken. It moves forward with what is taken, and any other position can be asked for: the
window then begins there, and samples that are no longer held are read again. So what is given
depends on the source alone, never on what was asked before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.reader import SourceReader, StoredSample
from evenstep.errors import InvariantError, MismatchError, SampleError
from evenstep.service.preparer import Prepared, PrepareFailure, Preparer
from evenstep.service.source_layout import SourceStripe
from evenstep.strategy.sample_table import SampleTable

__all__ = ["Ahead", "SourceBuffer"]


_GAP = 64  # samples that are read and thrown away rather than sought again


@dataclass(frozen=True)
class Ahead:
    """What is known of some positions of a source."""

    rows: Int64Array
    """[samples, 3 + columns] position, shard, index and lengths of those of this share, ascending.
    Of a share of several, others lie between. Numbers alone, as there are many sources to ask."""
    end: int
    """Positions below are answered for, as far as they are this share's and not before the first
    one asked for."""
    over: bool
    """The source ends at `end`."""
    failure: PrepareFailure | None = None
    """Why the sample at `end` cannot be had."""


_Row = tuple[int, int, int, tuple[int, ...]]


@dataclass
class _Window:
    begin: int
    end: int
    """Positions from `begin` to here are known."""
    rows: list[_Row] = field(default_factory=list)
    """Position, shard, index and lengths of those of this share."""
    over: bool = False
    failure: PrepareFailure | None = None


class SourceBuffer:
    """See the module docstring."""

    def __init__(
        self,
        reader: SourceReader,
        share: SourceStripe,
        preparer: Preparer,
        *,
        columns: Sequence[str],
        passes: int | None,
        limit: int,
    ) -> None:
        """
        Args:
            reader: of the source, used by nobody else.
            columns: of lengths, in the order in which they are measured.
            passes: as for `SourceReader.read`.
            limit: samples to prepare ahead, and to hold of those that were passed over.
        """
        self.reader, self.share = reader, share
        self._preparer = preparer
        self._columns = tuple(columns)
        self._passes, self._limit = passes, limit
        self._window = _Window(0, 0)
        self._held: dict[int, Prepared] = {}
        self._stream: Iterator[StoredSample] | None = None
        self._at = 0  # position that the stream gives next

    # What planners ask

    def ahead(self, position: int, count: int) -> Ahead:
        """What lies from a position on, `count` positions of all shares."""
        window = self._window_at(position)
        while window.end < position + count and not window.over and window.failure is None:
            self._extend(position + count - window.end)
        return self._told(position, position + count)

    def buffered(self, position: int) -> Ahead:
        """What is known already from a position on, without reading."""
        known = self._window.begin <= position <= self._window.end
        if not known:
            return Ahead(self._numbers([]), position, False)
        return self._told(position, max(self._window.end, position))

    def fill(self, at_most: int | None = None) -> int:
        """Prepares samples until the limit is held, or so many have been prepared; gives how many
        were. Workers are kept busy all the same."""
        before, window = len(self._held), self._window
        passed = sum(position < window.begin for position in self._held)
        limit = passed + self._limit
        if at_most is not None:
            limit = min(limit, before + at_most)
        while len(self._held) < limit and not window.over and window.failure is None:
            self._extend(self._preparer.batch_size)
        return len(self._held) - before

    def __len__(self) -> int:
        """Prepared samples that are held."""
        return len(self._held)

    # What is staged

    def take(self, wanted: SampleTable) -> list[Prepared]:
        """Prepared samples, out of the buffer where they are there.

        Args:
            wanted: of this share, by ascending position, at least one.

        Raises:
            SampleError: one that had to be read again cannot be read or prepared.
            MismatchError: one that had to be read again is another than the planner was told.
        """
        positions = wanted.position.tolist()
        missing = [position for position in positions if position not in self._held]
        again = self._read_again(missing) if missing else {}
        taken = [self._held.pop(p) if p in self._held else again[p] for p in positions]
        for row, prepared in enumerate(taken):
            told = tuple(int(wanted.lengths[name][row]) for name in self._columns)
            if prepared.lengths != told:
                raise MismatchError(
                    f"sample {wanted.identity(row)} had lengths {told} by "
                    f"{', '.join(self._columns)} when the step was planned, and has "
                    f"{prepared.lengths} now; its transform must give the same each time, so draw "
                    "no random numbers in it but by the sample"
                )
        self._forget(positions[-1] + 1)
        return taken

    # Window

    def _window_at(self, position: int) -> _Window:
        if not self._window.begin <= position <= self._window.end:
            self._window = _Window(position, position)
        return self._window

    def _extend(self, count: int) -> None:
        """Reads on by about as many positions, at least one."""
        window = self._window
        begin = window.end
        # Of positions of others nothing is known but that they are theirs.
        if self.share.next_owned(begin) >= begin + count:
            items: list[StoredSample] = []
            failure, over, end = None, False, begin + count
            if self._passes is not None:
                over, end = self._ends_before(begin, end)
        else:
            items, failure, over, end = self._read(begin, max(count, self._preparer.batch_size))
        made, unprepared = self._preparer.prepare(self.share.source, items) if items else ([], None)
        for item, prepared in zip(items, made):
            row = (item.position, item.shard, item.index, prepared.lengths)
            window.rows.append(row)
            self._held[item.position] = prepared
        if unprepared is not None:
            failure, over, end = unprepared, False, unprepared.position
        window.end, window.over, window.failure = end, over, failure

    def _read(
        self, begin: int, count: int
    ) -> tuple[list[StoredSample], PrepareFailure | None, bool, int]:
        """Items of this share among positions from `begin`, what failed, whether the source is
        over, and up to which position."""
        items: list[StoredSample] = []
        position = begin
        while position < begin + count:
            owned = self.share.next_owned(position)
            if owned > position and (owned - position > _GAP or self._seeks):
                position = min(owned, begin + count)
                if position != owned:
                    break
            try:
                item = self._next(position)
            except SampleError as error:
                self._stream = None
                if owned > position:  # not this share's to tell
                    position += 1
                    continue
                return items, PrepareFailure(position, error), False, position
            if item is None:
                return items, None, True, position
            if owned == position:
                items.append(item)
            position += 1
        if self._passes is not None:
            over, position = self._ends_before(begin, position)
            return items, None, over, position
        return items, None, False, position

    @property
    def _seeks(self) -> bool:
        """Whether seeking costs less than passing over samples."""
        return self.reader.random_access

    def _ends_before(self, begin: int, end: int) -> tuple[bool, int]:
        """Whether the source ends at or before a position, and that position or its end; a share
        that skips over positions of others would not see it."""
        assert self._passes is not None
        size = self.reader.size
        if size is None or end < size * self._passes:
            return False, end
        return True, max(size * self._passes, begin)

    def _next(self, position: int) -> StoredSample | None:
        """The item at a position; None where the source has ended."""
        if self._stream is None or self._at != position:
            self._stream = self.reader.read(position, passes=self._passes, transform=False)
            self._at = position
        item = next(self._stream, None)
        if item is None:
            self._stream = None
            return None
        if item.position != position:
            raise InvariantError(
                f"source {self.share.source!r} gave position {item.position} for {position}"
            )
        self._at += 1
        return item

    def _read_again(self, positions: Sequence[int]) -> dict[int, Prepared]:
        again: dict[int, Prepared] = {}
        for position in positions:
            while self._stream is not None and 0 < position - self._at <= _GAP:
                self._next(self._at)
            item = self._next(position)
            if item is None:
                raise MismatchError(
                    f"source {self.share.source!r} ended before position {position:,}, which it "
                    "had when the step was planned"
                )
            made, failure = self._preparer.prepare(self.share.source, [item])
            if failure is not None:
                raise failure.error
            again[position] = made[0]
        return again

    def _forget(self, position: int) -> None:
        """What was drawn up to a position is not asked for again, but for what was passed over: of
        that only so much is held."""
        window = self._window
        if window.begin < position <= window.end:
            window.begin = position
            window.rows = [row for row in window.rows if row[0] >= position]
        passed = sorted(p for p in self._held if p < self._window.begin)
        for held in passed[: max(len(passed) - self._limit, 0)]:
            del self._held[held]

    # Answers

    def _told(self, begin: int, end: int) -> Ahead:
        window = self._window
        known = min(end, window.end)
        rows = [row for row in window.rows if begin <= row[0] < known]
        stopped = known == window.end and end >= window.end
        return Ahead(
            self._numbers(rows),
            known,
            over=window.over and stopped,
            failure=window.failure if stopped else None,
        )

    def _numbers(self, rows: Sequence[_Row]) -> Int64Array:
        return np.array([(*row[:3], *row[3]) for row in rows], np.int64).reshape(
            -1, 3 + len(self._columns)
        )
