"""`LoaderPool`: all Source Loaders of a job as one provider of metadata for the planner.

It remembers samples that loaders have described and no plan has drawn, and merges the parts of a
source that several loaders share. Its answers depend on the sources alone. A sample that fails
raises only when it is requested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.source import Source
from evenstep.mixture.sample_table import SampleTable, Units, unmeasured
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.messages import Handle, Message, message, results
from evenstep.service.planner.draws import BadSamples
from evenstep.service.source_loader.preparer import PrepareFailure
from evenstep.service.source_loader.source_buffer import Ahead
from evenstep.service.source_loader.source_loader import SourceLoader

_Described = tuple[Int64Array, Mapping[int, Units]]
"""Rows and units of some samples, as of `Ahead`."""


@dataclass
class _Known:
    """What is known about one source."""

    rows: Int64Array
    """[samples, 3 + columns] see `Ahead.rows`."""
    units: Mapping[int, Units]
    """See `Ahead.units`."""
    begin: int
    end: int
    """Positions from `begin` to here are known."""
    over: bool
    failure: PrepareFailure | None
    bad: dict[int, PrepareFailure] = field(default_factory=dict)
    """By position, those of `rows` that are passed over."""
    first_asked: int | None = None
    """The first position asked for in this step."""

    def failures(self, begin: int, end: int) -> list[PrepareFailure]:
        """Why samples between two positions are skipped."""
        return [failure for at, failure in self.bad.items() if begin <= at < end]


class LoaderPool:
    """See the module docstring."""

    def __init__(
        self,
        layout: SourceLayout,
        handles: Sequence[Handle],
        *,
        columns: Sequence[str] = (),
        sources: Sequence[Source] = (),
    ) -> None:
        """
        Args:
            layout: which loader owns which samples.
            handles: [loaders]
            columns: names of lengths.
            sources: those that may have bad samples, or all.
        """
        self.layout = layout
        self.handles = list(handles)
        self._columns = tuple(columns)
        self._bad = BadSamples(sources)
        self._known: dict[int, _Known] = {}
        self._asked_since: set[int] = set()
        """Sources asked about since the last `forget_drawn`."""

    def describe(self) -> dict[str, dict[str, Any]]:
        """The size and fingerprint of each source; see `SourceLoader.describe`."""
        described: dict[str, dict[str, Any]] = {}
        for answer in results([handle.send(SourceLoader.describe) for handle in self.handles]):
            described.update(answer)
        return described

    def use_loaders(self, handles: Sequence[Handle], layout: SourceLayout) -> None:
        """Replaces the loaders. What is known of samples stays valid."""
        self.handles, self.layout = list(handles), layout

    def reached(self) -> dict[str, tuple[int, int]]:
        """By source that was drawn from: the position that comes next, and the number of samples
        that are known from there on."""
        return {
            self.layout.sources[source]: (known.begin, max(known.end - known.begin, 1))
            for source, known in self._known.items()
        }

    # Metadata

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        """See `evenstep.mixture.sample_table.Metadata`.

        Raises:
            SampleError: one of the samples cannot be read or prepared.
        """
        return self.ahead_of_many(*(np.array([n], np.int64) for n in (source, position, count)))

    def ahead_of_many(
        self, sources: Int64Array, positions: Int64Array, counts: Int64Array
    ) -> SampleTable:
        """See `evenstep.mixture.sample_table.Metadata`. All loaders are asked at the same
        time, each in one message about all the sources that it has.

        Raises:
            SampleError: one of the samples cannot be read or prepared; of several, the one whose
                source comes first.
        """
        numbers, begins = sources.tolist(), positions.tolist()
        ends = (positions + counts).tolist()
        unknown = []
        for source, position, end in zip(numbers, begins, ends):
            known = self._known_from(source, position)
            if known.end < end and not known.over and known.failure is None:
                unknown.append((source, known.end, end - known.end))
        if unknown:
            self._ask(unknown)
        parts = []
        for source, position, end in zip(numbers, begins, ends):
            known = self._known[source]
            if known.failure is not None and known.failure.position < end:
                raise known.failure.error
            if known.bad:
                assert known.first_asked is not None
                self._bad.check(self.layout.sources[source], known.failures(known.first_asked, end))
            first, last = known.rows[:, 0].searchsorted((position, end)).tolist()
            units = {number: column[first:last] for number, column in known.units.items()}
            parts.append((known.rows[first:last], units))
        return self._table(np.repeat(sources, [len(rows) for rows, _ in parts]), parts)

    def failures(self, source: str, begin: int, end: int) -> list[PrepareFailure]:
        """Why samples between two positions are passed over that were asked for in this step."""
        return self._known[self.layout.sources.index(source)].failures(begin, end)

    def _known_from(self, source: int, position: int) -> _Known:
        """What is known about a source that is asked for samples from a position on."""
        known = self._known.get(source)
        if known is None or not known.begin <= position <= known.end:
            none = np.empty((0, 3 + len(self._columns)), np.int64)
            known = self._known[source] = _Known(none, {}, position, position, False, None)
        if known.first_asked is None:
            known.first_asked = position
            self._asked_since.add(source)
        return known

    def _ask(self, unknown: Sequence[tuple[int, int, int]]) -> None:
        """Asks loaders about sources.

        Args:
            unknown: sources, with a position and a number of positions each.
        """
        questions: list[list[Message]] = [[] for _ in self.handles]
        asked: list[list[int]] = [[] for _ in self.handles]
        for source, *positions in unknown:
            name = self.layout.sources[source]
            for loader, _ in self.layout.of_source[name]:
                questions[loader].append(message(SourceLoader.ahead, name, *positions))
                asked[loader].append(source)
        replies = [h.send_all(each) for h, each in zip(self.handles, questions) if each]
        parts: dict[int, list[Ahead]] = {}
        answered = (answer for answers in results(replies) for answer in answers)
        for source, answer in zip(chain.from_iterable(asked), answered):
            parts.setdefault(source, []).append(answer)
        for source, answers in parts.items():
            _add(self._known[source], _merge(answers))

    def forget_drawn(self) -> None:
        """Forgets what has been drawn. Called before each step."""
        for source in self._asked_since:
            known = self._known[source]
            assert known.first_asked is not None
            drawn = int(known.rows[:, 0].searchsorted(known.first_asked))
            known.rows, known.begin = known.rows[drawn:], known.first_asked
            known.units = {number: column[drawn:] for number, column in known.units.items()}
            known.bad = {at: each for at, each in known.bad.items() if at >= known.begin}
            known.first_asked = None
        self._asked_since.clear()

    def _table(self, source: Int64Array, parts: Sequence[_Described]) -> SampleTable:
        rows, units = _joined(parts)
        columns = rows.T.copy()  # [3 + columns, samples]
        return SampleTable.unchecked(
            self.layout.sources,
            {
                "source": source.astype(np.int32),
                "position": columns[0],
                "shard": columns[1].astype(np.int32),
                "index": columns[2],
            },
            {name: columns[3 + k] for k, name in enumerate(self._columns)},
            {self._columns[number]: column for number, column in units.items()},
        )


def _merge(parts: Sequence[Ahead]) -> Ahead:
    """What loaders that share a source know together, up to where the first of them ends."""
    if len(parts) == 1:
        return parts[0]
    end = min(part.end for part in parts)
    rows, units = _joined([(part.rows, part.units) for part in parts])
    order = rows[:, 0].argsort(kind="stable")
    order = order[: int(rows[order, 0].searchsorted(end))]
    stopping = [part for part in parts if part.end == end]
    failures = [part.failure for part in stopping if part.failure is not None]
    return Ahead(
        rows[order],
        end,
        over=any(part.over for part in stopping),
        failure=failures[0] if failures else None,
        bad=tuple(
            sorted((b for p in parts for b in p.bad if b.position < end), key=lambda b: b.position)
        ),
        units={number: column[order] for number, column in units.items()},
    )


def _joined(parts: Sequence[_Described]) -> tuple[Int64Array, dict[int, Units]]:
    """Descriptions one after the other; a length is whole where it was not measured by units."""
    units = {
        number: np.concatenate([own.get(number, unmeasured(len(rows))) for rows, own in parts])
        for number in sorted({number for _, own in parts for number in own})
    }
    return np.concatenate([rows for rows, _ in parts]), units


def _add(known: _Known, more: Ahead) -> None:
    if len(more.rows):
        known.rows, known.units = _joined([(known.rows, known.units), (more.rows, more.units)])
    known.bad.update((failure.position, failure) for failure in more.bad)
    known.end = max(known.end, more.end)
    known.over, known.failure = more.over, more.failure
