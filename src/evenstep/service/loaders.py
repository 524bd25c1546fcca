"""`Loaders`: all Source Loaders of a job, as the planner sees them: one provider of metadata.

It remembers what loaders have told and has not been drawn, and merges the stripes of a source that
several loaders have. What it answers depends on the sources alone; a sample that cannot be had
raises only where it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.graph import LoadingPlan
from evenstep.plan.samples import SampleTable
from evenstep.service.handles import Handle, call, results
from evenstep.service.layout import Layout, work_of
from evenstep.service.preparing import Failure
from evenstep.service.source_buffer import Ahead

__all__ = ["Loaders"]

Int64Array = npt.NDArray[np.int64]


@dataclass
class _Known:
    """Of one source."""

    rows: Int64Array
    """See `Ahead.rows`."""
    begin: int
    end: int
    over: bool
    failure: Failure | None
    asked: int | None = None
    """Where the first question of this step began."""


class Loaders:
    """See the module docstring."""

    def __init__(
        self,
        layout: Layout,
        handles: Sequence[Handle],
        *,
        columns: Sequence[str] = (),
        read_ahead: bool = False,
    ) -> None:
        """
        Args:
            layout: which loader has what.
            handles: [loaders]
            columns: of lengths.
            read_ahead: tell loaders to fill their buffers after each plan, without waiting.
        """
        self.layout = layout
        self.handles = list(handles)
        self._columns, self._read_ahead = tuple(columns), read_ahead
        self._known: dict[int, _Known] = {}

    def describe(self) -> dict[str, dict[str, Any]]:
        """Of each source its size and fingerprint; see `SourceLoader.describe`."""
        described: dict[str, dict[str, Any]] = {}
        for told in results([handle.start("describe") for handle in self.handles]):
            described.update(told)
        return described

    # Metadata

    def ahead(self, source: int, position: int, count: int) -> SampleTable:
        """See `evenstep.plan.samples.Metadata`.

        Raises:
            SampleError: one of these samples cannot be had.
        """
        known = self._known.get(source)
        if known is None or not known.begin <= position <= known.end:
            none = np.empty((0, 3 + len(self._columns)), np.int64)
            known = _Known(none, position, position, False, None)
            self._known[source] = known
        if known.asked is None:
            known.asked = position
        end = position + count
        if known.end < end and not known.over and known.failure is None:
            name = self.layout.sources[source]
            asked = [
                self.handles[loader].start("ahead", name, known.end, end - known.end)
                for loader, _ in self.layout.of_source[name]
            ]
            _add(known, _merged(results(asked)))
        if known.failure is not None and known.failure.position < end:
            raise known.failure.error
        first, last = known.rows[:, 0].searchsorted((position, end)).tolist()
        return self._table(source, known.rows[first:last])

    def refresh(self) -> None:
        """Learns what loaders have buffered meanwhile, by one question to each, and forgets what
        has been drawn. Before each step; without it all is the same, by more questions."""
        asked: list[list[tuple[int, str, int]]] = [[] for _ in self.handles]
        for source, known in self._known.items():
            if known.asked is not None:
                first = int(known.rows[:, 0].searchsorted(known.asked))
                known.rows, known.begin, known.asked = known.rows[first:], known.asked, None
            if not known.over and known.failure is None:
                name = self.layout.sources[source]
                for loader, _ in self.layout.of_source[name]:
                    asked[loader].append((source, name, known.end))
        busy = [loader for loader, wanted in enumerate(asked) if wanted]
        replies = [
            self.handles[loader].start("buffered", [(name, at) for _, name, at in asked[loader]])
            for loader in busy
        ]
        told: dict[int, list[Ahead]] = {}
        for loader, answers in zip(busy, results(replies)):
            for (source, _, _), answer in zip(asked[loader], answers):
                told.setdefault(source, []).append(answer)
        for source, parts in told.items():
            _add(self._known[source], _merged(parts))

    # Plans

    def stage(self, plan: LoadingPlan) -> None:
        """Has every loader stage its share, and waits until it is done."""
        replies = [
            handle.start("stage", work_of(plan, shares))
            for handle, shares in zip(self.handles, self.layout.shares)
            if shares
        ]
        results(replies)
        if self._read_ahead:
            for handle in self.handles:
                handle.start("fill")

    def status(self) -> list[Mapping[str, Any]]:
        """[loaders]"""
        return results([handle.start("status") for handle in self.handles])

    def close(self) -> None:
        for handle in self.handles:
            call(handle, "close")

    def _table(self, source: int, rows: Int64Array) -> SampleTable:
        return SampleTable(
            sources=self.layout.sources,
            source=np.full(len(rows), source, np.int32),
            position=rows[:, 0],
            shard=rows[:, 1].astype(np.int32),
            index=rows[:, 2],
            lengths={name: rows[:, 3 + k] for k, name in enumerate(self._columns)},
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
