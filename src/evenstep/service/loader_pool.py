"""`LoaderPool`: all Source Loaders of a job, as the planner sees them: one provider of metadata.

It remembers what loaders have told and has not been drawn, and merges the stripes of a source that
several loaders have. What it answers depends on the sources alone; a sample that cannot be had
raises only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.service.handles import Handle, Message, Reply, call, results
from evenstep.service.preparer import PrepareFailure
from evenstep.service.source_buffer import Ahead
from evenstep.service.source_layout import SourceLayout, StageKey, works_of
from evenstep.strategy import LoadingPlan
from evenstep.strategy.sample_table import SampleTable

__all__ = ["LoaderPool"]


_STEPS = 3  # like the last, of which it is known what they would draw


@dataclass
class _Known:
    """Of one source."""

    rows: Int64Array
    """See `Ahead.rows`."""
    begin: int
    end: int
    over: bool
    failure: PrepareFailure | None
    asked: int | None = None
    """Where the first question of this step began."""


class LoaderPool:
    """See the module docstring."""

    def __init__(
        self,
        layout: SourceLayout,
        handles: Sequence[Handle],
        *,
        columns: Sequence[str] = (),
    ) -> None:
        """
        Args:
            layout: which loader has what.
            handles: [loaders]
            columns: of lengths.
        """
        self.layout = layout
        self.handles = list(handles)
        self._columns = tuple(columns)
        self._known: dict[int, _Known] = {}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Of each source its size and fingerprint; see `SourceLoader.describe`."""
        described: dict[str, dict[str, Any]] = {}
        for told in results([handle.start("describe") for handle in self.handles]):
            described.update(told)
        return described

    # Metadata

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        """See `evenstep.strategy.sample_table.Metadata`.

        Raises:
            SampleError: one of these samples cannot be had.
        """
        return self.ahead_of_many(*(np.array([n], np.int64) for n in (source, position, count)))

    def ahead_of_many(
        self, sources: Int64Array, positions: Int64Array, counts: Int64Array
    ) -> SampleTable:
        """See `evenstep.strategy.sample_table.BulkMetadata`. Loaders are asked all at once, each of all the
        sources that it has.

        Raises:
            SampleError: one of these samples cannot be had; where it is several, that of the source
                that comes first.
        """
        numbers, begins = sources.tolist(), positions.tolist()
        ends = (positions + counts).tolist()
        short = []
        for source, position, end in zip(numbers, begins, ends):
            known = self._from(source, position)
            if known.end < end and not known.over and known.failure is None:
                short.append((source, known.end, end - known.end))
        if short:
            self._ask(short)
        parts = []
        for source, position, end in zip(numbers, begins, ends):
            known = self._known[source]
            if known.failure is not None and known.failure.position < end:
                raise known.failure.error
            first, last = known.rows[:, 0].searchsorted((position, end)).tolist()
            parts.append(known.rows[first:last])
        return self._table(np.repeat(sources, [len(part) for part in parts]), parts)

    def _from(self, source: int, position: int) -> _Known:
        """What is known of a source, about a position from which something is asked."""
        known = self._known.get(source)
        if known is None or not known.begin <= position <= known.end:
            none = np.empty((0, 3 + len(self._columns)), np.int64)
            known = self._known[source] = _Known(none, position, position, False, None)
        if known.asked is None:
            known.asked = position
        return known

    def _ask(self, short: Sequence[tuple[int, int, int]]) -> None:
        """Learns more of sources: of each from a position on, so many positions."""
        asked: list[list[Message]] = [[] for _ in self.handles]
        about: list[list[int]] = [[] for _ in self.handles]
        for source, position, count in short:
            name = self.layout.sources[source]
            for loader, _ in self.layout.of_source[name]:
                asked[loader].append(("ahead", (name, position, count)))
                about[loader].append(source)
        self._learn(about, [h.start_all(m) if m else None for h, m in zip(self.handles, asked)])

    def refresh(self) -> None:
        """Learns what loaders have buffered meanwhile, by one question to each of which too little
        is known for another step like the last, and forgets what has been drawn. Before each step;
        without it all is the same, by more questions."""
        asked: list[list[tuple[str, int]]] = [[] for _ in self.handles]
        about: list[list[int]] = [[] for _ in self.handles]
        lacking = [False] * len(self.handles)
        for source, known in self._known.items():
            drawn = 0
            if known.asked is not None:
                drawn = int(known.rows[:, 0].searchsorted(known.asked))
                known.rows, known.begin, known.asked = known.rows[drawn:], known.asked, None
            if not known.over and known.failure is None:
                name = self.layout.sources[source]
                for loader, _ in self.layout.of_source[name]:
                    asked[loader].append((name, known.end))
                    about[loader].append(source)
                    lacking[loader] |= len(known.rows) < _STEPS * max(drawn, 1)
        replies = [
            handle.start("buffered", each) if lacks else None
            for handle, each, lacks in zip(self.handles, asked, lacking)
        ]
        self._learn(about, replies)

    def _learn(self, about: Sequence[Sequence[int]], replies: Sequence[Reply | None]) -> None:
        """
        Args:
            about: [loaders] sources that each was asked about.
            replies: [loaders] None where it was not asked.
        """
        busy = [sources for sources, reply in zip(about, replies) if reply is not None]
        told: dict[int, list[Ahead]] = {}
        for sources, answers in zip(busy, results([r for r in replies if r is not None])):
            for source, answer in zip(sources, answers):
                told.setdefault(source, []).append(answer)
        for source, parts in told.items():
            _add(self._known[source], _merged(parts))

    # Plans

    def stage(self, plan: LoadingPlan, keys: Sequence[StageKey] | None = None) -> None:
        """Has every loader stage its share, or of it only some buckets, and waits until it is
        done."""
        replies = [
            handle.start("stage", work)
            for handle, work, shares in zip(
                self.handles, works_of(plan, self.layout, keys), self.layout.shares
            )
            if shares
        ]
        results(replies)

    def status(self) -> list[Mapping[str, Any]]:
        """[loaders]"""
        return results([handle.start("status") for handle in self.handles])

    def close(self) -> None:
        for handle in self.handles:
            call(handle, "close")

    def _table(self, source: Int64Array, parts: Sequence[Int64Array]) -> SampleTable:
        columns = np.concatenate(parts).T.copy()
        return SampleTable.unchecked(
            self.layout.sources,
            {
                "source": source.astype(np.int32),
                "position": columns[0],
                "shard": columns[1].astype(np.int32),
                "index": columns[2],
            },
            {name: columns[3 + k] for k, name in enumerate(self._columns)},
        )


def _merged(parts: Sequence[Ahead]) -> Ahead:
    """Of the loaders that have stripes of a source: what all of them know."""
    if len(parts) == 1:
        return parts[0]
    end = min(part.end for part in parts)
    rows = np.concatenate([part.rows for part in parts])
    rows = rows[rows[:, 0].argsort(kind="stable")]
    rows = rows[: int(rows[:, 0].searchsorted(end))]
    stopping = [part for part in parts if part.end == end]
    failures = [part.failure for part in stopping if part.failure is not None]
    return Ahead(
        rows,
        end,
        over=any(part.over for part in stopping),
        failure=failures[0] if failures else None,
    )


def _add(known: _Known, more: Ahead) -> None:
    if len(more.rows):
        known.rows = np.concatenate([known.rows, more.rows])
    known.end = max(known.end, more.end)
    known.over, known.failure = more.over, more.failure
