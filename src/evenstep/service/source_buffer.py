"""`SourceBuffer`: a source's samples in order, read and prepared ahead of the planner.

The buffer knows a window of positions: samples in it are measured, and prepared samples are held
until they are taken. The window moves forward with what is taken. Any other position can be asked
for, too: the window then begins there, and samples that are no longer held are read again. So an
answer depends on the source alone, never on what was asked before.

Several threads may use it. One of them at a time reads; what is held already can be had meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.reader import SourceReader, StoredSample
from evenstep.errors import InvariantError, MismatchError, SampleError
from evenstep.service.preparer import Prepared, PrepareFailure, Preparer
from evenstep.service.source_layout import SourceStripe
from evenstep.strategy.sample_table import SampleTable

_MAX_SKIP = 64  # samples that are read and dropped rather than seeking past them
_END_SECONDS = 5.0  # that `close` waits for another thread
_CHUNK_SECONDS = 0.02  # of reading and preparing, in a chunk of a fill


@dataclass(frozen=True)
class Ahead:
    """What is known about a source from some position on."""

    rows: Int64Array
    """[samples, 3 + columns] position, shard, index and lengths of each owned sample, ascending. If
    loaders share the source, positions of others lie between. One array of numbers, because there
    may be hundreds of sources to ask about."""
    end: int
    """All owned positions from the first one asked for up to here are in `rows`."""
    over: bool
    """Whether the source ends at `end`."""
    failure: PrepareFailure | None = None
    """Why the sample at `end` cannot be drawn."""


_Row = tuple[int, int, int, tuple[int, ...]]
"""Position, shard, index and lengths of a sample."""


@dataclass
class _Window:
    begin: int
    end: int
    """Positions from `begin` to here are known."""
    rows: list[_Row] = field(default_factory=list)
    """The owned samples among them."""
    over: bool = False
    failure: PrepareFailure | None = None


@dataclass(frozen=True)
class _Read:
    """What was read from a position on."""

    items: list[StoredSample]
    """The owned samples."""
    end: int
    """Where reading stopped."""
    over: bool
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
            reader: of the source; no one else may use it.
            columns: names of lengths, in the order in which they are measured.
            passes: as for `SourceReader.read`.
            limit: samples to prepare ahead, and to hold of those that were passed over.
        """
        self.reader, self.share = reader, share
        self._preparer = preparer
        self._columns = tuple(columns)
        self._passes, self._limit = passes, limit
        self._reading = threading.Lock()  # for the reader, and to extend or replace the window
        self._lock = threading.Lock()  # for the window and what is held; never held for long
        self._pace = 0.0  # seconds that a sample takes; 0 until one was read
        self._drawn = False
        self.prepared = 0
        """Samples that were prepared since the start."""
        self._window = _Window(0, 0)
        self._held: dict[int, Prepared] = {}
        self._stream: Iterator[StoredSample] | None = None
        self._stream_at = 0  # position of the stream's next sample

    # Questions of the planner

    def ahead(self, position: int, count: int) -> Ahead:
        """The owned samples among `count` positions from `position` on, reading as far as need
        be."""
        end = position + count
        with self._lock:
            if self._knows(position, end):
                return self._answer(position, end)
        with self._reading:
            while True:
                with self._lock:
                    self._move_to(position)
                    if self._knows(position, end):
                        return self._answer(position, end)
                    missing = end - self._window.end
                self._extend(max(missing, self._chunk() if self._preparer.workers else 1))

    def buffered(self, position: int) -> Ahead:
        """The owned samples from a position on that are known already."""
        with self._lock:
            window = self._window
            if not window.begin <= position <= window.end:
                return Ahead(self._numbers([]), position, False)
            return self._answer(position, window.end)

    def __len__(self) -> int:
        """Prepared samples that are held."""
        return len(self._held)

    # Filling

    def has_room(self) -> bool:
        """Whether samples are to be prepared ahead: none are before the first was drawn, since
        it is not known where that will be."""
        with self._lock:
            return self._drawn and self._room() > 0

    @property
    def slow(self) -> bool:
        """Whether a sample takes as long as a chunk of other sources."""
        return self._pace > _CHUNK_SECONDS

    def fill_chunk(self) -> int:
        """Prepares a few samples ahead, as many as take little time; returns their number."""
        with self._reading:
            with self._lock:
                room = self._room()
            return self._extend(min(self._chunk(), room)) if room else 0

    def fill(self, at_most: int | None = None) -> int:
        """Prepares samples until the limit is held, or `at_most` are prepared (or somewhat more, to
        keep all workers busy); returns their number."""
        made = 0
        while (at_most is None or made < at_most) and self._room() > 0:
            made += self.fill_chunk()
        return made

    def _room(self) -> int:
        """Samples that are to be prepared ahead."""
        window = self._window
        if window.over or window.failure is not None:
            return 0
        ahead = sum(position >= window.begin for position in self._held)
        return self._limit - ahead

    def _chunk(self) -> int:
        """Samples that are read and prepared in about `_CHUNK_SECONDS`."""
        least, most = self._preparer.at_once
        return max(min(int(_CHUNK_SECONDS / self._pace), most) if self._pace else 0, least)

    # Staging

    def take(self, wanted: SampleTable) -> list[Prepared]:
        """Removes prepared samples from the buffer, and returns them.

        Args:
            wanted: at least one owned sample, by ascending position.

        Raises:
            SampleError: one that had to be read again cannot be read or prepared.
            MismatchError: one that had to be read again has other lengths than the planner knows.
        """
        positions = wanted.position.tolist()
        found = self._pop(positions)
        if len(found) < len(positions):
            with self._reading:
                found.update(self._pop(positions))  # prepared while this thread waited
                found.update(self._read_again([p for p in positions if p not in found]))
        taken = [found[position] for position in positions]
        for row, prepared in enumerate(taken):
            planned = tuple(int(wanted.lengths[name][row]) for name in self._columns)
            if prepared.lengths != planned:
                raise MismatchError(
                    f"sample {wanted.identity(row)} had lengths {planned} by "
                    f"{', '.join(self._columns)} when the step was planned, and has "
                    f"{prepared.lengths} now; its transform must give the same each time, so seed "
                    "any random numbers in it by the sample"
                )
        with self._lock:
            self._forget_before(positions[-1] + 1)
        return taken

    def close(self) -> None:
        """Closes the reader, unless another thread does not stop reading."""
        if self._reading.acquire(timeout=_END_SECONDS):
            try:
                self.reader.close()
            finally:
                self._reading.release()

    def _pop(self, positions: Sequence[int]) -> dict[int, Prepared]:
        with self._lock:
            return {p: self._held.pop(p) for p in positions if p in self._held}

    # Window

    def _knows(self, position: int, end: int) -> bool:
        window = self._window
        known = window.begin <= position <= window.end
        ended = window.over or window.failure is not None
        return known and (end <= window.end or ended)

    def _move_to(self, position: int) -> None:
        if not self._window.begin <= position <= self._window.end:
            self._window = _Window(position, position)

    def _extend(self, count: int) -> int:
        """Extends the window by about `count` positions, at least one; returns the number of
        samples that were prepared."""
        window = self._window
        begin = window.end
        made: list[Prepared] = []
        started = time.perf_counter()
        if self.share.next_owned(begin) >= begin + count:
            read = self._skip(begin, begin + count)
        else:
            read = self._read(begin, count)
        end, over, failure = read.end, read.over, read.failure
        if read.items:
            made, unprepared = self._preparer.prepare(self.share.source, read.items)
            seconds = (time.perf_counter() - started) / len(read.items)
            self._pace = (self._pace + seconds) / 2 if self._pace else seconds
            if unprepared is not None:
                end, over, failure = unprepared.position, False, unprepared
        with self._lock:
            for item, prepared in zip(read.items, made):
                row = (item.position, item.shard, item.index, prepared.lengths)
                window.rows.append(row)
                self._held[item.position] = prepared
            window.end, window.over, window.failure = end, over, failure
            self.prepared += len(made)
        return len(made)

    def _skip(self, begin: int, end: int) -> _Read:
        """Passes positions that other loaders own; nothing is read."""
        if self._passes is None:
            return _Read([], end, over=False)
        over, end = self._ends_before(begin, end)
        return _Read([], end, over)

    def _read(self, begin: int, count: int) -> _Read:
        """Reads the owned samples among `count` positions."""
        items: list[StoredSample] = []
        position = begin
        while position < begin + count:
            owned = self.share.next_owned(position)
            if owned > position and (owned - position > _MAX_SKIP or self.reader.random_access):
                position = min(owned, begin + count)
                if position != owned:
                    break
            try:
                item = self._next(position)
            except SampleError as error:
                self._stream = None
                if owned > position:  # the loader that owns it reports the failure
                    position += 1
                    continue
                return _Read(items, position, False, PrepareFailure(position, error))
            if item is None:
                return _Read(items, position, over=True)
            if owned == position:
                items.append(item)
            position += 1
        if self._passes is not None:
            over, position = self._ends_before(begin, position)
            return _Read(items, position, over)
        return _Read(items, position, over=False)

    def _ends_before(self, begin: int, end: int) -> tuple[bool, int]:
        """Whether the source ends at or before the position `end`, and that position or the
        source's end. A loader that skips positions of others would not notice."""
        assert self._passes is not None
        size = self.reader.size
        if size is None or end < size * self._passes:
            return False, end
        return True, max(size * self._passes, begin)

    def _next(self, position: int) -> StoredSample | None:
        """The stored sample at a position; None if the source has ended."""
        if self._stream is None or self._stream_at != position:
            self._stream = self.reader.read(position, passes=self._passes, transform=False)
            self._stream_at = position
        item = next(self._stream, None)
        if item is None:
            self._stream = None
            return None
        if item.position != position:
            raise InvariantError(
                f"source {self.share.source!r} gave position {item.position} for {position}"
            )
        self._stream_at += 1
        return item

    def _read_again(self, positions: Sequence[int]) -> dict[int, Prepared]:
        again: dict[int, Prepared] = {}
        for position in positions:
            while self._stream is not None and 0 < position - self._stream_at <= _MAX_SKIP:
                self._next(self._stream_at)
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

    def _forget_before(self, position: int) -> None:
        """Moves the window's begin up to a position. Only samples that were passed over can still
        be asked for; the last `limit` of them are held."""
        window = self._window
        if window.begin < position <= window.end:
            self._drawn = True
            window.begin = position
            window.rows = [row for row in window.rows if row[0] >= position]
        passed_over = sorted(p for p in self._held if p < self._window.begin)
        for held in passed_over[: max(len(passed_over) - self._limit, 0)]:
            del self._held[held]

    # Answers

    def _answer(self, begin: int, end: int) -> Ahead:
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
