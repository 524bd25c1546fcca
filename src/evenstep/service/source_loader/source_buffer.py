"""`SourceBuffer`: a source's samples in order, read and prepared ahead of the planner.

The buffer holds the prepared samples of a window of positions. The window moves forward as samples
are taken; samples that were passed over are held for some time. A request for any other position
moves the window there, and samples that are no longer held are read again. So an answer depends on
the source alone, never on earlier requests.

Several threads may use it. One at a time reads; samples that are already held are available
meanwhile.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.reader import SourceReader
from evenstep.errors import MismatchError, TooLongError
from evenstep.mixture.sample_table import Units, units_of
from evenstep.service.job.sample_measure import Length, total
from evenstep.service.source_loader.preparer import CHUNK, Prepared, PrepareFailure, Preparer
from evenstep.service.source_loader.sample_window import BufferBudget, PassedOver, SampleWindow
from evenstep.service.source_loader.source_stream import SourceStream, Stretch
from evenstep.strategy.loaders import SourceStripe

_CHUNK_SECONDS = 0.02  # of reading and preparing, in a chunk of a fill
_SLOW_SECONDS = 0.1  # a sample of a slow source takes longer
_FIRST_PLANS = 4  # plans' worth of samples that are prepared ahead at first
_PLANS_BETWEEN = 32  # plans after which it is one more
_PASSED_PLANS = 8  # plans' worth of samples that were passed over are held whatever their bytes
_END_SECONDS = 5.0  # that `close` waits for another thread


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
    bad: tuple[PrepareFailure, ...] = ()
    """Those of `rows` that cannot be used and are passed over, ascending."""
    units: Mapping[int, Units] = field(default_factory=dict)
    """By number of a length, from 0, that is measured unit by unit: [samples]."""


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
        budget: BufferBudget,
    ) -> None:
        """
        Args:
            reader: of the source; no one else may use it.
            columns: names of lengths, in the order in which they are measured.
            passes: as for `SourceReader.read`.
            limit: samples to prepare ahead.
            budget: of all buffers of the loader.
        """
        self.reader, self.share = reader, share
        self._stream = SourceStream(reader, share, passes)
        self._preparer, self._columns = preparer, tuple(columns)
        self._limit, self._budget = limit, budget
        self._reading = threading.Lock()  # for the stream, and to extend or replace the window
        self._lock = threading.Lock()  # for what is held; never held for long
        self._window, self._passed = SampleWindow(0, 0), PassedOver()
        # Estimates:
        self._taken = 0.0  # samples that a plan takes; 0 before the first was drawn
        self._plans = 0  # that have taken any
        self._size = 0.0  # bytes of a sample
        self._pace = 0.0  # seconds that a sample takes
        self._batch = 0  # samples that keep workers busy for a chunk's time

    # Questions of the planner

    def ahead(self, position: int, count: int) -> Ahead:
        """The owned samples from `position` on that are known, with at least `count` positions:
        reads as far as need be."""
        end = position + count
        with self._lock:
            if self._knows(position, end) and not self._window.outage:
                return self._answer(position, end)
        with self._reading:
            with self._lock:
                if self._window.outage:
                    self._window.failure = None  # it may have passed
            while True:
                with self._lock:
                    if not self._window.begin <= position <= self._window.end:
                        for prepared in self._window.held:
                            self._passed.add(prepared)
                        self._window = SampleWindow(position, position)
                    if self._knows(position, end):
                        return self._answer(position, end)
                    missing = end - self._window.end
                self._extend(max(missing, self._batch))

    def held(self) -> tuple[int, int]:
        """Samples that are held, and their bytes."""
        with self._lock:
            window, passed = self._window, self._passed
            return len(window.held) + len(passed.held), window.size + passed.size

    def _knows(self, position: int, end: int) -> bool:
        window = self._window
        return window.begin <= position <= window.end and (end <= window.end or window.ended)

    def _answer(self, begin: int, end: int) -> Ahead:
        """
        Args:
            end: up to which is asked. An outage behind it may have passed when more is asked for.
        """
        window = self._window
        held = window.within(begin, window.end)
        rows, units = _in_columns([prepared.row for prepared in held], len(self._columns))
        return Ahead(
            rows,
            window.end,
            over=window.over,
            failure=None if window.outage and end <= window.end else window.failure,
            bad=tuple(
                PrepareFailure(each.row[0], each.sample, *each.row[1:3]) for each in _bad(held)
            ),
            units=units,
        )

    # Filling

    def has_room(self, *, much: bool = False) -> bool:
        """Whether samples should be prepared ahead. None are before the first is drawn, since its
        position is not known.

        Args:
            much: whether there is enough room to start.
        """
        with self._lock:
            room = self._room() if self._taken else 0
            return room > (len(self._window.held) // 8 if much else 0)

    @property
    def slow(self) -> bool:
        """Whether a single sample takes long."""
        return self._pace > _SLOW_SECONDS

    def fill_chunk(self, at_most: int | None = None) -> int:
        """Prepares samples ahead, as many as take little time; returns their number."""
        with self._reading:
            with self._lock:
                room = self._room()
            if self._preparer.workers:
                room = min(room, self._batch or self._preparer.workers)
            if at_most is not None:
                room = min(room, at_most)
            return self._extend(room, _CHUNK_SECONDS) if room else 0

    def _room(self) -> int:
        """Samples that should be prepared ahead: few at first, as their sources share the
        processor with those that the next step waits for, and ever more."""
        window = self._window
        if window.ended or self._has_too_many_bad():
            return 0
        ahead = len(window.held)
        plans = _FIRST_PLANS + self._plans // _PLANS_BETWEEN
        room = min(self._limit, math.ceil(plans * self._taken)) - ahead
        if self._size:
            free = self._budget.share(self) - window.size - self._passed.size
            room = min(room, int(free / self._size))
        return max(room, min(round(self._taken), self._limit) - ahead, 0)

    def _has_too_many_bad(self) -> bool:
        found = _bad(self._window.held)
        bad = {each.row[1:3] for each in found if not isinstance(each.sample, TooLongError)}
        return len(bad) > self.reader.source.bad_samples

    def _extend(self, count: int, seconds: float | None = None) -> int:
        """Extends the window by `count` positions, or without workers by those that can be prepared
        in the time given, at least one; returns the number of samples in them."""
        window = self._window
        stretch = Stretch(self._stream, window.end, count)
        made, failure, spent = self._preparer.prepare(self.share.source, stretch, seconds)
        if made:
            self._note_pace(spent / len(made), len(made))
        if failure is None and stretch.error is not None:
            failure = PrepareFailure(stretch.end, stretch.error)
        size = sum(prepared.size for prepared in made)
        with self._lock:
            window.add(made, size)
            window.end = stretch.end if failure is None else failure.position
            window.over, window.failure = stretch.over and failure is None, failure
            if made:
                self._size = max(size / len(made), 0.9 * self._size)
        return len(made)

    def _note_pace(self, seconds: float, count: int) -> None:
        self._pace = max(seconds, 0.9 * self._pace)
        if workers := self._preparer.workers:
            in_time = int(_CHUNK_SECONDS * workers / seconds) if seconds else 4 * count
            self._batch = max(min(in_time, 4 * count, 2 * CHUNK * workers), workers)

    # Staging

    def take(
        self, positions: Sequence[int], lengths: Sequence[tuple[Length, ...]]
    ) -> list[Prepared]:
        """Removes prepared samples from the buffer, and returns them.

        Args:
            positions: at least one owned position, ascending.
            lengths: what the planner knows of each.

        Raises:
            SampleError: one that had to be read again cannot be read or prepared.
            MismatchError: one that had to be read again has other lengths than the planner knows.
        """
        found = self._pick(positions)
        if len(found) < len(positions):
            with self._reading:
                found.update(self._pick(positions))  # prepared while this thread waited
                again = self._stream.at([each for each in positions if each not in found])
                made, failure, _ = self._preparer.prepare(self.share.source, again)
            if failure is not None:
                raise failure.error
            found.update((prepared.row[0], prepared) for prepared in made)
        taken = [found[position] for position in positions]
        for prepared, planned in zip(taken, lengths):
            if prepared.row[3:] != planned:
                _, shard, index, *now = prepared.row
                raise MismatchError(
                    f"sample {self.share.source}[{shard}][{index}] had lengths {planned} by "
                    f"{', '.join(self._columns)} when the step was planned, and has {tuple(now)} "
                    "now; its transform must give the same each time, so seed any random numbers "
                    "in it by the sample"
                )
        self._budget.draw(self, sum(prepared.size for prepared in taken))
        return taken

    def close(self) -> None:
        """Closes the reader, unless another thread does not stop reading."""
        if self._reading.acquire(timeout=_END_SECONDS):
            try:
                self.reader.close()
            finally:
                self._reading.release()

    def _pick(self, positions: Sequence[int]) -> dict[int, Prepared]:
        """Takes those that are held, by position, and moves the window's begin behind them. Of
        samples that were passed over, the last ones are held."""
        with self._lock:
            window, passed = self._window, self._passed
            if window.begin <= positions[-1] < window.end:
                self._taken = max(len(positions), 0.9 * self._taken)
                self._plans += 1
            wanted = set(positions)
            picked: dict[int, Prepared] = {}
            for prepared in window.move(positions[-1] + 1):
                if prepared.row[0] in wanted:
                    picked[prepared.row[0]] = prepared
                else:
                    passed.add(prepared)
            if len(picked) < len(wanted):
                picked.update((p.row[0], p) for p in map(passed.pop, positions) if p is not None)
            passed.limit(max(self._budget.share(self), _PASSED_PLANS * self._taken * self._size))
        return picked


def _in_columns(
    rows: Sequence[tuple[Any, ...]], columns: int
) -> tuple[Int64Array, dict[int, Units]]:
    """`Ahead.rows` and `Ahead.units` of samples' rows."""
    units = {}
    for number in range(columns):
        column = [row[3 + number] for row in rows]
        if any(type(each) is tuple for each in column):
            units[number] = units_of(each if type(each) is tuple else None for each in column)
    if units:
        rows = [(*row[:3], *map(total, row[3:])) for row in rows]
    return np.array(rows, np.int64).reshape(-1, 3 + columns), units


def _bad(held: Sequence[Prepared]) -> Sequence[Prepared]:
    return [each for each in held if each.bad]
