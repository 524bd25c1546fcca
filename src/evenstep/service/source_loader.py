"""`SourceLoader`: reads, prepares and buffers the samples of the sources that it has.

What it tells planners is metadata; samples themselves leave it for the constructors of the buckets
that a plan names, which fetch them from where they were staged. Nothing but its own sources is ever
open in it. Every message may come twice: the second time changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.data.reader_kinds import open_reader
from evenstep.errors import ConfigurationError
from evenstep.service.loader_job import LoaderJob
from evenstep.service.preparer import Preparer
from evenstep.service.source_buffer import Ahead, SourceBuffer
from evenstep.service.source_layout import StageKey
from evenstep.strategy import LoaderWork

__all__ = ["Fetched", "SourceLoader"]


@dataclass(frozen=True)
class Fetched:
    """Samples of a bucket that one loader has."""

    rows: Int64Array
    """[n] of the plan."""
    samples: list[Any]


class SourceLoader:
    """See the module docstring."""

    def __init__(self, job: LoaderJob) -> None:
        """
        Raises:
            ConfigurationError: a source that cannot be opened.
        """
        self.number = job.number
        self._preparer = Preparer(
            job.sources, job.measure, workers=job.workers, name=f"Source Loader {job.number}"
        )
        self._buffers: dict[str, SourceBuffer] = {}
        for source, share in zip(job.sources, job.shares):
            self._buffers[source.name] = SourceBuffer(
                open_reader(source, seed=job.seed),
                share,
                self._preparer,
                columns=job.columns,
                passes=job.passes,
                limit=job.buffer_size,
            )
        self._staged: dict[int, dict[StageKey, Fetched]] = {}
        self._counts = {"prepared": 0, "staged": 0, "fetched": 0}

    # Metadata

    def describe(self) -> dict[str, dict[str, Any]]:
        """Of each of its sources the size, None where it is not known, and the fingerprint."""
        return {
            name: {"size": buffer.reader.size, "fingerprint": buffer.reader.fingerprint}
            for name, buffer in self._buffers.items()
        }

    def ahead(self, source: str, position: int, count: int) -> Ahead:
        """What it has of the positions of a source from `position` on, reading as far as need be.
        What is wrong with a sample is told, not raised, since it may never be drawn."""
        return self._buffer(source).ahead(position, count)

    def buffered(self, asked: Sequence[tuple[str, int]]) -> list[Ahead]:
        """The same of several sources from a position each, as far as it is known already."""
        return [self._buffer(source).buffered(position) for source, position in asked]

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of those that it has."""
        return tuple(self._buffers)

    def fill(self) -> int:
        """Prepares samples ahead until each source has `Job.buffer_size`; gives how many it
        prepared."""
        return sum(map(self.fill_one, self._buffers))

    def fill_one(self, source: str, at_most: int | None = None) -> int:
        """The same of one source, or so many samples of it, for who has other messages to answer in
        between."""
        made = self._buffer(source).fill(at_most)
        self._counts["prepared"] += made
        return made

    # Samples

    def stage(self, work: LoaderWork) -> None:
        """Moves samples of a plan out of the buffers to where the constructors of their buckets
        fetch them. Those that are carried stay, and so does what is staged already.

        Raises:
            SampleError, MismatchError: see `SourceBuffer.take`.
        """
        here = self._staged.get(work.step, {})
        wanted: dict[StageKey, Int64Array] = {}
        for subplan, buckets in [(None, work.bucket), *work.subplans.items()]:
            for bucket in np.unique(buckets[buckets >= 0]).tolist():
                if (subplan, bucket) not in here:
                    wanted[(subplan, bucket)] = np.flatnonzero(buckets == bucket)
        if not wanted:
            return
        used = np.zeros(len(work.rows), np.bool_)
        used[np.concatenate(list(wanted.values()))] = True
        payload: dict[int, Any] = {}
        for name, buffer in self._buffers.items():
            of_source = work.samples.source == work.samples.sources.index(name)
            rows = np.flatnonzero(of_source & used)
            if len(rows):
                taken = buffer.take(work.samples[rows])
                payload.update(zip(rows.tolist(), (prepared.sample for prepared in taken)))
        staged = self._staged.setdefault(work.step, {})
        for key, rows in wanted.items():
            staged[key] = Fetched(work.rows[rows], [payload[row] for row in rows.tolist()])
        self._counts["staged"] += len(payload)

    def fetch(self, step: int, bucket: int, subplan: str | None = None) -> Fetched | None:
        """The staged samples of a bucket. They stay staged until they are released. None where the
        step is not staged here: it was released, or this loader was begun anew since; the planner
        stages it again."""
        staged = self._staged.get(step)
        if staged is None:
            return None
        fetched = staged.get((subplan, bucket))
        if fetched is not None:
            self._counts["fetched"] += len(fetched.samples)
        return fetched

    def release(self, step: int, keys: Sequence[StageKey]) -> None:
        """Lets go of samples that every client has received."""
        staged = self._staged.get(step)
        if staged is None:
            return
        for key in keys:
            staged.pop(key, None)
        if not staged:
            del self._staged[step]

    # Operation

    def status(self) -> Mapping[str, Any]:
        """JSON-able."""
        return {
            "loader": self.number,
            "sources": {name: len(buffer) for name, buffer in self._buffers.items()},
            "staged_steps": sorted(self._staged),
            "staged_samples": sum(
                len(f.samples) for staged in self._staged.values() for f in staged.values()
            ),
            **self._counts,
        }

    def close(self) -> None:
        """Ends its workers and lets go of files. Harmless the second time."""
        self._preparer.close()
        for buffer in self._buffers.values():
            buffer.reader.close()

    def _buffer(self, source: str) -> SourceBuffer:
        if source not in self._buffers:
            raise ConfigurationError(
                f"loader {self.number} does not have source {source!r}, but "
                f"{', '.join(self._buffers) or 'none'}"
            )
        return self._buffers[source]
