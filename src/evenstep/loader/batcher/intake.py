"""Samples from the workers, in order, with their arrival numbers.

The workers are an ordinary `torch.utils.data.DataLoader` that delivers chunks. What it is asked for
comes from the trainer process, where the sampler runs: a feeder sends indices in blocks, and the
operating system's pipe holds the feeder back when the workers are busy.
"""

from __future__ import annotations

import contextlib
import re
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader

from evenstep.errors import EvenstepError, LoaderDiedError, SampleError
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.workers.chunks import Chunk, ChunkCollate, IndexedDataset, Request
from evenstep.loader.workers.iterable import ChunkedIterable, WorkerStateLog
from evenstep.loader.workers.seeding import epoch_seed, rank_seed
from evenstep.processes import EndWithParent

__all__ = ["Arrival", "FeederError", "IndexFeed", "Intake"]

_on_death: Callable[[int, Any], Any] | None = None  # torch's handler, which it sets once a process

_CAUGHT = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\n")


class FeederError(SampleError):
    """The sampler raised in the trainer process."""


@dataclass(frozen=True)
class Arrival:
    """One chunk, and what its samples are called."""

    chunk: Chunk
    kept: npt.NDArray[np.int64]
    """Which samples of the chunk's payload are wanted: others have been trained on before."""
    numbers: npt.NDArray[np.int64]
    """Their arrival numbers."""
    indices: tuple[Any, ...] | None
    """Their dataset indices; None for an iterable dataset."""
    bad: tuple[tuple[int, Any, str], ...]
    """Samples left out: arrival number, index or None, and why."""


class IndexFeed:
    """The batch sampler of the inner loader: chunks of indices out of the feeder's pipe."""

    def __init__(self, connection: Connection, chunk_size: int) -> None:
        self._connection = connection
        self._chunk_size = chunk_size
        self.epoch_seed = 0
        self.serial = 0
        self.asked: deque[tuple[tuple[int, ...], tuple[Any, ...]]] = deque()
        """Chunks asked for and not yet delivered, in order: arrival numbers and indices."""

    def __iter__(self) -> Iterator[list[Request]]:
        self.asked.clear()
        waiting: list[tuple[int, Any]] = []
        while True:
            serial, block = self._connection.recv()
            if serial != self.serial:
                continue  # left over from an abandoned pass
            if isinstance(block, Exception):
                raise block
            waiting.extend(block or ())
            while len(waiting) >= self._chunk_size or (block is None and waiting):
                numbers, indices = zip(*waiting[: self._chunk_size])
                self.asked.append((numbers, indices))
                yield [Request(self.epoch_seed, indices)]
                del waiting[: self._chunk_size]
            if block is None:
                return


class Intake:
    """Owns the inner loader. For each epoch call `begin`, then run `chunks`."""

    def __init__(self, spec: LoaderSpec, feed: Connection | None) -> None:
        self._spec = spec
        self._generator = torch.Generator()
        self._feed: IndexFeed | None = None
        self._chunked: ChunkedIterable | None = None
        self._iterator: Iterator[Chunk] = iter(())
        workers = spec.num_workers
        skips = spec.skip_bad_samples > 0
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": ChunkCollate(
                measure=spec.measure, policy=spec.policy, skips=skips, packed=workers > 0
            ),
            "timeout": spec.timeout,
            "worker_init_fn": EndWithParent(spec.worker_init_fn),
            "generator": self._generator,
            "persistent_workers": spec.persistent_workers,
        }
        if workers:
            options["prefetch_factor"] = spec.prefetch_factor
            options["multiprocessing_context"] = spec.start_method
        if spec.iterable:
            self._chunked = ChunkedIterable(spec.dataset, spec.chunk_size, replays=spec.replay)
            self._loader = DataLoader(self._chunked, batch_size=None, **options)
        else:
            assert feed is not None
            self._feed = IndexFeed(feed, spec.chunk_size)
            dataset = IndexedDataset(spec.dataset, skips=skips)
            self._loader = DataLoader(dataset, batch_sampler=self._feed, **options)

    def begin(self, epoch: EpochSpec) -> None:
        """Starts the workers. Forks, where that is how processes are started: so before there are
        threads, one of which may hold a lock that a worker would wait for.

        Raises: as `chunks`.
        """
        seed = rank_seed(self._spec.seed, epoch.epoch, self._spec.rank)
        self._generator.manual_seed(seed)
        if self._feed is not None:
            self._feed.serial = epoch.serial
            self._feed.epoch_seed = epoch_seed(self._spec.seed, epoch.epoch)
        if self._chunked is not None:
            self._chunked.begin(epoch.sources)
        with self._explaining():
            self._iterator = iter(self._loader)

    def chunks(
        self, epoch: EpochSpec, trail: WorkerStateLog | None
    ) -> Generator[Arrival, None, None]:
        """All chunks of this rank's share of an epoch, in order.

        Args:
            trail: where an iterable dataset's chunks are noted.

        Raises:
            SampleError: a sample cannot be used.
            Exception: whatever the inner loader raises when a worker dies or hangs.
        """
        iterator, self._iterator = self._iterator, iter(())  # the workers end with the pass
        with self._explaining():
            if self._feed is not None:
                yield from self._fed(iterator, self._feed)
            else:
                assert trail is not None
                yield from self._streamed(iterator, epoch, trail)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            with _hearing_of_deaths() if self._spec.num_workers else contextlib.nullcontext():
                yield
        except Exception as error:
            explained = self._explain(error)
            if explained is error:
                raise
            raise explained from error

    def _fed(self, chunks: Iterator[Chunk], feed: IndexFeed) -> Iterator[Arrival]:
        for chunk in chunks:
            numbers, indices = feed.asked.popleft()
            yield Arrival(
                chunk,
                np.arange(len(chunk.places)),
                np.array(numbers, np.int64)[chunk.places],
                tuple(indices[place] for place in chunk.places.tolist()),
                tuple((numbers[place], indices[place], why) for place, why in chunk.bad),
            )

    def _streamed(
        self, chunks: Iterator[Chunk], epoch: EpochSpec, trail: WorkerStateLog
    ) -> Iterator[Arrival]:
        ended: set[int] = set()
        for chunk in chunks:
            begin = trail.add(chunk)
            positions, numbers = epoch.remaining.select(begin, chunk.size)
            wanted = dict(zip(positions.tolist(), numbers.tolist()))
            kept = np.flatnonzero(np.isin(chunk.places, positions))
            names = [wanted[place] for place in chunk.places[kept].tolist()]
            bad = tuple((wanted[p], None, why) for p, why in chunk.bad if p in wanted)
            yield Arrival(chunk, kept, np.array(names, np.int64), None, bad)
            assert chunk.origin is not None
            if chunk.origin.ended:
                ended.add(chunk.origin.worker)
            if len(ended) == max(self._spec.num_workers, 1):
                return

    def _explain(self, error: Exception) -> Exception:
        """A `SampleError` where the dataset is at fault, and nothing but what it has to say: torch
        passes on a worker's error with the worker's whole traceback for a message."""
        text = str(error)
        caught = _CAUGHT.match(text)
        name = caught[1] if caught else type(error).__name__
        told = text.rpartition(f"{name}: ")[2].strip() if caught else text
        if isinstance(error, EvenstepError):
            return type(error)(told) if caught else error
        if caught and not self._spec.iterable:
            # Not the dataset, whose errors are sample errors already: `worker_init_fn`, say.
            return LoaderDiedError(f"a worker could not start: {name}: {told}")
        if caught or (self._spec.iterable and not self._spec.num_workers):
            return SampleError(f"the dataset raised {name}: {told}; mend or leave out the sample")
        return error


@contextlib.contextmanager
def _hearing_of_deaths() -> Iterator[None]:
    """torch raises the death of a worker in whatever the main thread is doing at the moment. It may
    within this context; elsewhere not even a lock could be relied on."""
    global _on_death
    if _on_death is not None:
        signal.signal(signal.SIGCHLD, _on_death)
        _on_death(signal.SIGCHLD, None)  # for those who died meanwhile
    try:
        yield
    finally:
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _on_death = handler if callable(handler) else None
