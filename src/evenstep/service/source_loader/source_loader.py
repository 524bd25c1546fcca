"""`SourceLoader`: reads, prepares and buffers the samples of the sources that it owns.

It describes samples to the planner by metadata only. The samples themselves go to the constructors
of the buckets that a plan names: the loader stages them, and the constructors fetch them. It opens
only its own sources. Every message is idempotent.

Messages may arrive in several threads at a time. A message about a slow source blocks no others.
"""

from __future__ import annotations

import resource
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import groupby
from typing import Any

from evenstep.data.block_cache import CacheCounts
from evenstep.data.reader import SourceReader
from evenstep.data.reader_kinds import open_reader, open_readers
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.job.source_layout import LoaderJob, StageKey
from evenstep.service.source_loader.buffer_filler import BufferFiller
from evenstep.service.source_loader.preparer import Prepared, Preparer, sample_bytes
from evenstep.service.source_loader.sample_window import BufferBudget
from evenstep.service.source_loader.source_buffer import Ahead, SourceBuffer
from evenstep.service.source_loader.staged_steps import STEPS_KEPT, Fetched, StagedStep
from evenstep.strategy import LoaderTask

_LEAST_STEPS = 16
"""Steps that stay staged whatever their bytes."""


class Standby:
    """What a process holds that may run the loader of any of some jobs at once: workers that have
    started, and sources that are open, as many as fit in the memory that a loader may fill."""

    def __init__(self, jobs: Sequence[LoaderJob]) -> None:
        self._sources = {source.name: source for job in jobs for source in job.sources}
        self._job = jobs[0]
        self.preparer = Preparer(
            tuple(self._sources.values()),
            self._job.measure,
            workers=max(job.workers for job in jobs),
            name="a standby",
        )
        self._readers: dict[str, SourceReader] = {}

    def open(self) -> None:
        """A source that cannot be opened now is left to the loader that needs it."""
        room = _memory() + self._job.buffer_bytes
        for name, source in self._sources.items():
            if _memory() >= room:
                break
            with suppress(EvenstepError, ImportError):
                self._readers[name] = open_reader(source, seed=self._job.seed)

    @property
    def opened(self) -> int:
        """Sources that are open."""
        return len(self._readers)

    def take(self, sources: Sequence[Source]) -> dict[str, SourceReader]:
        """The readers of these sources, as far as they are open. Closes all others."""
        taken = {s.name: self._readers.pop(s.name) for s in sources if s.name in self._readers}
        for reader in self._readers.values():
            reader.close()
        return taken


def _memory() -> int:
    """Bytes that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


class SourceLoader:
    """See the module docstring."""

    def __init__(self, job: LoaderJob, standby: Standby | None = None) -> None:
        """
        Args:
            standby: for this job and perhaps others; None for none.

        Raises:
            ConfigurationError: a source cannot be opened.
        """
        self.number, self._columns = job.number, job.columns
        standby = standby or Standby([job])
        self._preparer = standby.preparer
        self._preparer.name = job.role
        self._budget = BufferBudget(job.buffer_bytes)
        self._most_bytes = job.buffer_bytes
        self._buffers: dict[str, SourceBuffer] = {}
        opened = standby.take(job.sources)
        others = [source for source in job.sources if source.name not in opened]
        opened |= zip([s.name for s in others], open_readers(others, seed=job.seed))
        for source, share in zip(job.sources, job.shares):
            self._buffers[source.name] = SourceBuffer(
                opened[source.name],
                share,
                self._preparer,
                columns=job.columns,
                passes=job.passes,
                limit=job.buffer_size,
                budget=self._budget,
            )
        self._filler = BufferFiller(workers=self._preparer.workers)
        self._lock = threading.Lock()  # for what is staged and counted; never held for long
        self._staged: dict[int, StagedStep] = {}

    # Metadata

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources that it owns or shares."""
        return tuple(self._buffers)

    def describe(self) -> dict[str, dict[str, Any]]:
        """The size of each of its sources, None if not known, and its fingerprint."""
        return {
            name: {"size": buffer.reader.size, "fingerprint": buffer.reader.fingerprint}
            for name, buffer in self._buffers.items()
        }

    def ahead(self, source: str, position: int, count: int) -> Ahead:
        """The samples that it owns of a source and knows from `position` on. At least `count`
        positions are known then, which are read if need be. A sample that fails is described, not
        raised: it may never be drawn."""
        self._check()
        return self._buffer(source).ahead(position, count)

    def fill_in_background(self) -> None:
        """Starts to prepare samples ahead in threads, of each source that was drawn from, within
        the limits of `ServiceMemory`. An unexpected error in them is raised by all later
        messages."""
        self._filler.start()

    # Samples

    def stage(self, task: LoaderTask, keys: Sequence[StageKey] | None = None) -> None:
        """Moves samples of a plan out of the buffers, for the constructor of their buckets to
        fetch. Carried samples stay buffered, and samples staged already stay staged. A sample that
        is in several buckets, as in one of an encoder's subplan, is read once for all of them.

        Args:
            keys: the buckets to stage; None is all that the task has.

        Raises:
            SampleError, MismatchError: see `SourceBuffer.take`.
        """
        self._check()
        step = self._step(task.step)
        with step.lock:
            step.stage(task, keys, lambda rows: self._take(step, task, rows))
        with self._lock:
            self._drop_old_steps()

    def _take(self, step: StagedStep, task: LoaderTask, rows: list[int]) -> list[Any]:
        """The samples of some rows of a task, ascending."""
        samples = task.samples if len(rows) == len(task.rows) else task.samples[rows]
        positions, sources = samples.position.tolist(), samples.source.tolist()
        lengths = list(zip(*map(samples.measured, self._columns)))
        taken: list[Prepared] = []
        drawn: list[SourceBuffer] = []
        for source, run in groupby(sources):  # a task is ordered by source and position
            drawn.append(self._buffer(samples.sources[source]))
            own = slice(len(taken), len(taken) + sum(1 for _ in run))
            taken += drawn[-1].take(positions[own], lengths[own])
        step.size += sum(prepared.size for prepared in taken)
        self._filler.add(drawn)
        return [prepared.sample for prepared in taken]

    def _step(self, number: int) -> StagedStep:
        with self._lock:
            step = self._staged.pop(number, None) or StagedStep()
            self._staged[number] = step  # the last
            return step

    def _drop_old_steps(self) -> None:
        """Drops the steps that were staged longest ago, which a constructor may have left behind
        when it died. They are read again on request."""
        staged = self._staged
        while len(staged) > STEPS_KEPT or (
            len(staged) > _LEAST_STEPS and sum(s.size for s in staged.values()) > self._most_bytes
        ):
            del staged[next(iter(staged))]

    def fetch(self, step: int, bucket: int, subplan: str | None = None) -> Fetched | None:
        """The staged samples of a bucket, which stay staged until they are released. None if they
        are not staged here."""
        self._check()
        with self._lock:
            staged = self._staged.get(step)
            return None if staged is None else staged.buckets.get((subplan, bucket))

    def release(self, step: int, keys: Sequence[StageKey]) -> None:
        """Drops samples that every client has received."""
        with self._lock:
            if (staged := self._staged.get(step)) is not None:
                for key in keys:
                    staged.buckets.pop(key, None)
                if not staged.buckets:
                    staged.size = 0

    def drop_from(self, step: int) -> None:
        """Drops what is staged of a step and all later ones, which will be planned again."""
        with self._lock:
            for number in [each for each in self._staged if each >= step]:
                del self._staged[number]

    # Operation

    def status(self) -> Mapping[str, Any]:
        """JSON-able."""
        with self._lock:
            staged = {
                number: [sample for each in step.buckets.values() for sample in each.samples]
                for number, step in self._staged.items()
                if step.buckets
            }
        held = {name: buffer.held() for name, buffer in self._buffers.items()}
        counts = [asdict(buffer.reader.cache_counts) for buffer in self._buffers.values()]
        return {
            "loader": self.number,
            "sources": {name: samples for name, (samples, _) in held.items()},
            "source_bytes": {name: size for name, (_, size) in held.items()},
            "staged_steps": sorted(staged),
            "staged_samples": sum(map(len, staged.values())),
            "staged_bytes": sum(sum(map(sample_bytes, each)) for each in staged.values()),
            "cache": {name: sum(each[name] for each in counts) for name in asdict(CacheCounts())},
        }

    def close(self) -> None:
        """Ends its threads and workers and closes its files. Idempotent."""
        self._filler.close()
        self._preparer.close()
        for buffer in self._buffers.values():
            buffer.close()

    def _check(self) -> None:
        if self._filler.failure is not None:
            raise self._filler.failure

    def _buffer(self, source: str) -> SourceBuffer:
        if source not in self._buffers:
            raise ConfigurationError(
                f"loader {self.number} does not have source {source!r}; it has "
                f"{', '.join(self._buffers) or 'none'}"
            )
        return self._buffers[source]
