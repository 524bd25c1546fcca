"""`Preparer`: transforms and measures stored samples, in this process or in worker processes.

Workers are spawned, never forked: a fork of a process with threads, as those of Ray are, may hang.
Each sends back plain bytes, so that no shared memory outlives it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from evenstep.batch.labels import MAPPINGS, is_tensor
from evenstep.data.pickling import pickled
from evenstep.data.reader import StoredSample
from evenstep.data.source import Source
from evenstep.data.storage import passes
from evenstep.errors import (
    OF_CODE,
    ConfigurationError,
    LoaderDiedError,
    SampleError,
    StorageError,
    TooLongError,
)
from evenstep.mixture.sample_table import BAD
from evenstep.processes import end_with_parent
from evenstep.service.job.sample_measure import SampleMeasure

CHUNK = 8
"""Samples that a worker is sent at once, at most."""
_OBJECT = 112  # bytes of an array or tensor beside its numbers
_NUMBER = 32  # bytes of a number in a list
_PIXEL = 4  # bytes, as Pillow stores it
_DEPTH = 4  # levels of containers; what lies deeper is not counted
_ATTEMPTS = 4  # to prepare samples, with other workers if these die


class Prepared(NamedTuple):
    """A sample that is ready to be drawn."""

    row: tuple[Any, ...]
    """Position, shard, index, and lengths as from `SampleMeasure`."""
    sample: Any
    size: int
    """Bytes of memory, about."""

    @property
    def bad(self) -> bool:
        """Whether it cannot be used, but passed over; then `sample` is why."""
        return bool(self.row[-1] == BAD)


@dataclass(frozen=True)
class PrepareFailure:
    """Why the sample at a position cannot be drawn; nor any that follow it, unless it is passed
    over."""

    position: int
    error: Exception
    shard: int = -1
    index: int = -1


class Outcome(NamedTuple):
    """The result for some samples, up to the first failure that is not skipped."""

    made: list[Prepared]
    failure: PrepareFailure | None
    seconds: float
    """Seconds of reading and preparing them, without waiting for a worker, or for threads of this
    process that compute."""


class Preparer:
    """Prepares samples of the given sources. Several threads may use it."""

    def __init__(
        self, sources: Sequence[Source], measure: SampleMeasure, *, workers: int, name: str
    ) -> None:
        """
        Args:
            workers: processes; 0 for none.
            name: the role that the workers belong to, for errors.
        """
        self._sources = {source.name: source for source in sources}
        self.workers, self.name = workers, name
        self._measure = measure
        self._lock = threading.Lock()  # for the pool's beginning and end
        self._pool: ProcessPoolExecutor | None = None

    def prepare(
        self, source: str, items: Iterable[StoredSample], seconds: float | None = None
    ) -> Outcome:
        """Prepares samples up to the first that fails; of a source that may have bad samples, these
        are among the outcome.

        Args:
            seconds: without workers, takes no further sample from `items` after that long.

        Raises:
            LoaderDiedError: a worker died.
        """
        if not self.workers:
            return _prepare(self._sources[source], self._measure, items, seconds)
        begin = time.perf_counter()
        read = list(items)
        return self._by_workers(source, read, time.perf_counter() - begin)

    def close(self) -> None:
        """Ends the workers. Idempotent."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)

    def start(self) -> None:
        """Starts the workers, and waits until they are ready. Without this call they start when
        there is work."""
        if self.workers:
            pool = self._running_pool()
            for ready in [pool.submit(_is_ready) for _ in range(self.workers)]:
                ready.result()

    def _by_workers(self, source: str, items: Sequence[StoredSample], seconds: float) -> Outcome:
        for _ in range(_ATTEMPTS):
            pool = self._running_pool()
            try:
                return self._prepared_in(pool, source, items, seconds)
            except BrokenExecutor as error:
                died = error
                self._drop(pool)
        raise LoaderDiedError(
            f"a worker process of {self.name} died while it transformed samples of source "
            f"{source!r}, and so did {_ATTEMPTS - 1} that followed it; they ran out of memory or "
            "were killed, see the system's log"
        ) from died

    def _prepared_in(
        self, pool: ProcessPoolExecutor, source: str, items: Sequence[StoredSample], seconds: float
    ) -> Outcome:
        what = f"a sample of source {source!r}"
        made: list[Prepared] = []
        size = min(-(-len(items) // (2 * self.workers)), CHUNK)
        replies = [
            pool.submit(_prepare_in_worker, source, pickled(what, items[at : at + size]))
            for at in range(0, len(items), size or 1)
        ]
        for reply in replies:
            some = Outcome(*pickle.loads(reply.result()))
            made += some.made
            seconds += some.seconds
            if some.failure is not None:
                return Outcome(made, some.failure, seconds)
        return Outcome(made, None, seconds)

    def _running_pool(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = self._new_pool()
            return self._pool

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        """Drops a pool in which a worker has died, so that the next use starts another."""
        with self._lock:
            if self._pool is pool:
                self._pool = None
        pool.shutdown(wait=True, cancel_futures=True)

    def _new_pool(self) -> ProcessPoolExecutor:
        setup = pickled(f"what {self.name} reads", (self._sources, self._measure))
        return ProcessPoolExecutor(
            self.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(setup,),
        )


def may_be_passed_over(source: Source, error: SampleError) -> bool:
    """Whether an error is the fault of a sample alone, of a source that may have bad ones, or
    of samples that are too long and left out. A
    system that does not answer, has no memory or lacks a package says nothing of the sample."""
    if isinstance(error, TooLongError):  # which is raised where it is to be left out
        return True
    cause = error.__cause__
    blameless = isinstance(error, StorageError) or isinstance(cause, (MemoryError, *OF_CODE))
    blameless = blameless or passes(cause)
    return source.bad_samples > 0 and not blameless


def sample_bytes(value: Any, level: int = 0) -> int:
    """The memory that a sample takes, about, found in a microsecond or two: its text, numbers,
    arrays, tensors, images, and mappings and lists of them. Of an array that is a part of another
    one, that part is counted."""
    if type(value) is np.ndarray:
        return int(value.nbytes) + _OBJECT
    size = sys.getsizeof(value, _OBJECT)
    parts: Iterable[Any] = ()
    if isinstance(value, MAPPINGS):
        parts = value.values()
    elif is_tensor(value):
        return int(value.nbytes) + _OBJECT
    elif isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)):
            return size + _NUMBER * len(value)
        parts = value
    elif hasattr(value, "__dict__"):
        width, height = getattr(value, "width", None), getattr(value, "height", None)
        if isinstance(width, int) and isinstance(height, int):
            return size + _PIXEL * width * height
        if not level:  # what a field refers to may be anything
            parts = vars(value).values()
    if level < _DEPTH:
        for part in parts:
            size += sample_bytes(part, level + 1)
    return size


def _prepare(
    source: Source,
    measure: SampleMeasure,
    items: Iterable[StoredSample],
    seconds: float | None = None,
) -> Outcome:
    made: list[Prepared] = []
    failure: PrepareFailure | None = None
    begin, here, everywhere = time.perf_counter(), time.thread_time(), time.process_time()
    for item in items:
        shard, index = item.shard, item.index
        try:
            if isinstance(item.sample, SampleError):  # why it cannot be read
                raise item.sample
            sample = source.prepare(item.sample, shard, index)
            sample, lengths = measure.fitted(source, sample, shard, index)
            size = sample_bytes(sample)
        except SampleError as error:
            if not may_be_passed_over(source, error):
                failure = PrepareFailure(item.position, error)
                break
            sample, lengths, size = error, (BAD,) * (len(measure.modalities) + 1), 0
        made.append(Prepared((item.position, shard, index, *lengths), sample, size))
        if seconds is not None and time.perf_counter() >= begin + seconds:
            break
    # What it computed itself, and the time in which the process waited, as for storage. The time of
    # other threads would make any source look slow, and slow sources are given more threads.
    waited = time.perf_counter() - begin - (time.process_time() - everywhere)
    return Outcome(made, failure, time.thread_time() - here + max(waited, 0.0))


# In a worker process

_setup: tuple[Mapping[str, Source], SampleMeasure] | Exception | None = None
"""What the worker prepares with, or the error if it could not be unpickled."""


def _start_worker(setup: bytes) -> None:
    global _setup
    try:
        _setup = pickle.loads(setup)
    except Exception as error:  # raised by a module that is imported for it
        _setup = error
    end_with_parent()


def _is_ready() -> None:
    """Returns as soon as a worker has started."""


def _prepare_in_worker(source: str, items: bytes) -> bytes:
    assert _setup is not None
    if isinstance(_setup, Exception):
        raise ConfigurationError(
            f"source {source!r} cannot be read in a worker process ({type(_setup).__name__}: "
            f"{_setup}); define its functions in a module to import, or choose workers=0"
        ) from _setup
    sources, measure = _setup
    outcome = _prepare(sources[source], measure, pickle.loads(items))
    return pickled(f"a prepared sample of source {source!r}", tuple(outcome))
