"""Stored samples to prepared and measured ones, in this process or in worker processes.

Workers are spawned, never forked: a fork of a process with threads, as those of Ray are, may hang.
Each sends back plain bytes, so that no shared memory outlives it.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from evenstep.data.pickling import packed
from evenstep.data.reader import StoredSample
from evenstep.data.source import Source
from evenstep.errors import ConfigurationError, LoaderDiedError, SampleError
from evenstep.service.sample_measure import SampleMeasure

__all__ = ["PrepareFailure", "Prepared", "Preparer"]

_CHUNK = 8  # samples that a worker is sent at once


@dataclass(frozen=True)
class Prepared:
    """A sample that can be drawn."""

    sample: Any
    lengths: tuple[int, ...]
    """See `SampleMeasure`."""


@dataclass(frozen=True)
class PrepareFailure:
    """Why the sample at a position, and what lies behind it, cannot be had."""

    position: int
    error: Exception


class Preparer:
    """Prepares samples of the given sources."""

    def __init__(
        self, sources: Sequence[Source], measure: SampleMeasure, *, workers: int, name: str
    ) -> None:
        """
        Args:
            workers: processes; 0 for none.
            name: of whom they work for, for errors.
        """
        self._sources = {source.name: source for source in sources}
        self._measure, self._workers, self._name = measure, workers, name
        self._pool: ProcessPoolExecutor | None = None

    @property
    def at_once(self) -> int:
        """Samples that it takes to keep all workers busy; 1 without them."""
        return self._workers * _CHUNK * 2 or 1

    def prepare(
        self, source: str, items: Sequence[StoredSample]
    ) -> tuple[list[Prepared], PrepareFailure | None]:
        """Samples up to the first that cannot be prepared, and why that cannot.

        Raises:
            LoaderDiedError: a worker died.
        """
        if not self._workers:
            made, error = _prepared(self._sources[source], self._measure, _plain(items))
        else:
            made, error = self._by_workers(source, items)
        if error is None:
            return made, None
        return made, PrepareFailure(items[len(made)].position, error)

    def close(self) -> None:
        """Ends the workers. Harmless the second time."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _by_workers(
        self, source: str, items: Sequence[StoredSample]
    ) -> tuple[list[Prepared], SampleError | None]:
        plain, of = _plain(items), f"a sample of source {source!r}"
        made: list[Prepared] = []
        try:
            if self._pool is None:
                self._pool = self._started()
            sent = [
                self._pool.submit(_work, source, packed(of, plain[begin : begin + _CHUNK]))
                for begin in range(0, len(plain), _CHUNK)
            ]
            for reply in sent:
                some, error = pickle.loads(reply.result())
                made += some
                if error is not None:
                    return made, error
        except BrokenExecutor as error:
            self.close()
            raise LoaderDiedError(
                f"a worker process of {self._name} died while it transformed samples of source "
                f"{source!r}; it ran out of memory or was killed, see the system's log"
            ) from error
        return made, None

    def _started(self) -> ProcessPoolExecutor:
        kinds = packed(f"what {self._name} reads", (self._sources, self._measure))
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_begin,
            initargs=(kinds,),
        )


_Plain = tuple[int, int, Any]


def _plain(items: Sequence[StoredSample]) -> list[_Plain]:
    return [(item.shard, item.index, item.sample) for item in items]


def _prepared(
    source: Source, measure: SampleMeasure, items: Sequence[_Plain]
) -> tuple[list[Prepared], SampleError | None]:
    made = []
    for shard, index, stored in items:
        try:
            sample = source.prepare(stored, shard, index)
            made.append(Prepared(sample, measure(source, sample, shard, index)))
        except SampleError as error:
            return made, error
    return made, None


# In a worker process

_kinds: tuple[Mapping[str, Source], SampleMeasure] | Exception | None = None
"""The error where it could not be read."""


def _begin(kinds: bytes) -> None:
    global _kinds
    try:
        _kinds = pickle.loads(kinds)
    except Exception as error:  # of what is imported for it
        _kinds = error
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    """Ends this process when its parent is gone, however that ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(source: str, items: bytes) -> bytes:
    assert _kinds is not None
    if isinstance(_kinds, Exception):
        raise ConfigurationError(
            f"source {source!r} cannot be read in a worker process ({type(_kinds).__name__}: "
            f"{_kinds}); define its functions in a module that can be imported there, or choose "
            "workers=0"
        ) from _kinds
    sources, measure = _kinds
    made, error = _prepared(sources[source], measure, pickle.loads(items))
    return packed(f"a prepared sample of source {source!r}", (made, error))
