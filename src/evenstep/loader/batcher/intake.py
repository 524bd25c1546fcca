"""Samples from the workers, in order and numbered, for one epoch after the other.

The workers are an ordinary `torch.utils.data.DataLoader` that delivers chunks: a `ChunkRequest`
goes to a worker, a `Chunk` comes back from it.

Dataset indices come from the trainer's sampler, and `IndexFeed` cuts them into the chunks that
workers prepare. The sampler runs in the trainer process, where a feeder thread sends its indices in
blocks. The operating system's pipe holds the feeder back while the workers are busy. Where samples
are dealt on demand, the feeder sends what the batcher asks it for.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from evenstep.arrays import Int64Array
from evenstep.data.mixed import MixedStream
from evenstep.data.resumable import leaves_rows_out
from evenstep.data.shares import share_of
from evenstep.loader.batcher.batcher_messages import EpochSpec, LoaderSpec
from evenstep.loader.batcher.chunk_checks import TRAINED, NumberedChunk
from evenstep.loader.transport.first_rows import FirstRows
from evenstep.loader.workers.chunks import (
    Chunk,
    ChunkCollate,
    ChunkRequest,
    IndexedDataset,
    Preparation,
    Splitting,
)
from evenstep.loader.workers.iterable import ChunkedIterable, WorkerStateLog
from evenstep.loader.workers.worker_start import (
    WorkerStart,
    context_of,
    could_not_start,
    epoch_seed,
    explain_worker_error,
    raising_worker_deaths,
    rank_seed,
)
from evenstep.protocol.window_size import FIRST_SIZE

_POLL_SECONDS = 0.2  # between two checks whether the pass continues


class IndexFeed:
    """The batch sampler of the inner loader: turns blocks from the feeder into chunk requests."""

    def __init__(self, connection: Connection, chunk_size: int, workers: int) -> None:
        self._connection = connection
        self._chunk_size = chunk_size
        self._shares = max(1, 2 * workers)
        """Chunks of a window, as long as those for all of it would be smaller."""
        self.epoch_seed = 0
        self.serial = 0
        self.taken = 0
        """Samples with lower arrival numbers belong to a resumed round."""
        self.deals = False
        """Samples are dealt on demand, so the feeder may have nothing to send for now."""
        self.check: Callable[[], None] = lambda: None
        """Raises an exception once the pass has failed or was left, as then no block may come."""
        self.starting = False
        """The inner loader is being started, and nothing can be asked of the feeder yet."""
        self.first_rows: FirstRows | None = None
        """What this rank tells the others, once the feeder has said it."""
        self.requested: deque[tuple[tuple[int, ...], tuple[Any, ...]]] = deque()
        """Chunks requested and not yet delivered, in order: arrival numbers and dataset indices."""
        self._kept: list[tuple[int, Any]] = []
        """A block of the next pass, if it has come already."""

    def request(self, entries: Int64Array | None) -> None:
        """Asks for the indices at some entries of the ranks' stream; None for no more."""
        with contextlib.suppress(OSError):  # the trainer has closed its end
            self._connection.send((self.serial, entries))

    def drain(self, over: threading.Event) -> None:
        """Drops what still comes in a pass that prepares no more samples, until no more is asked
        for: a feeder that cannot send does not read either, and the asking thread would hang."""
        with contextlib.suppress(EOFError, OSError):
            while not (over.is_set() or self._kept):
                if self._connection.poll(_POLL_SECONDS):
                    received: tuple[int, Any] = self._connection.recv()
                    if received[0] > self.serial:
                        self._kept.append(received)

    def _size(self, samples: int) -> int:
        """Of chunks where so many samples are waited for: all workers work for them."""
        return min(self._chunk_size, max(1, samples // self._shares))

    def _must_not_wait(self) -> bool:
        return self.deals and (self.starting or any(numbers for numbers, _ in self.requested))

    def _comes(self, timeout: float = 0) -> bool:
        return bool(self._kept) or self._connection.poll(timeout)

    def __iter__(self) -> Iterator[list[ChunkRequest]]:
        self.requested.clear()
        self.first_rows = None
        size, given = self._size(FIRST_SIZE), 0
        waiting: list[tuple[int, Any]] = []
        while True:
            # The inner loader asks for a request before it hands over a chunk that has come. While
            # that may be the chunk that decides the next deal, it gets a request of nothing.
            while self._must_not_wait() and not self._comes():
                self.requested.append(((), ()))
                yield [ChunkRequest(self.epoch_seed, ())]
            while not self._comes(_POLL_SECONDS):
                self.check()
            serial, block = self._kept.pop() if self._kept else self._connection.recv()
            if serial != self.serial:
                continue  # left over from an abandoned pass
            if isinstance(block, FirstRows):
                self.first_rows = block
                continue
            if isinstance(block, Exception):
                raise block
            waiting.extend(block or ())
            # What a deal leaves over is a smaller chunk. Waiting for the next deal could hang, and
            # chunks would depend on timing.
            while len(waiting) >= size or (not block and waiting):
                # Samples whose steps are planned already do not fail with those that follow.
                planned = sum(number < self.taken for number, _ in waiting[:size])
                numbers, indices = zip(*waiting[: planned or size])
                self.requested.append((numbers, indices))
                yield [ChunkRequest(self.epoch_seed, indices)]
                given += len(indices)
                size = self._size(max(FIRST_SIZE, given // 2))
                del waiting[: len(indices)]
            if block is None:
                return


class Intake:
    """Owns the inner loader. For each epoch call `begin`, then run `chunks`."""

    def __init__(
        self,
        spec: LoaderSpec,
        connection: Connection,
        lock: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        """
        Args:
            connection: where the feeder's blocks arrive.
            lock: held while samples are measured; None in workers.
        """
        self._spec = spec
        self._generator = torch.Generator()
        self.feed: IndexFeed | None = None
        """None for an iterable dataset."""
        self._chunked: ChunkedIterable | None = None
        self._iterator: Iterator[Chunk] = iter(())
        workers = spec.num_workers
        skip_bad = spec.faults.skip_bad_samples > 0
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": ChunkCollate(
                measure=spec.measure,
                fitting=spec.fitting,
                digests=spec.policy.context_parallel > 1,
                skip_bad=skip_bad,
                packed=workers > 0,
                lock=lock,
            ),
            "timeout": spec.timeout if workers else 0,
            "worker_init_fn": WorkerStart(spec.worker_init_fn),
            "generator": self._generator,
            "persistent_workers": spec.persistent_workers,
        }
        if workers:
            options["prefetch_factor"] = spec.prefetch_factor
            options["multiprocessing_context"] = context_of(spec.start_method)
        preparation = Preparation(spec.prepare, skip_bad=skip_bad)
        if spec.iterable:
            self._chunked = ChunkedIterable(
                spec.dataset,
                spec.chunk_size,
                preparation,
                replays=spec.faults.replay or leaves_rows_out(spec.dataset),
                split=Splitting.of(spec.measure, spec.fitting),
                share=partial(share_of, rank=spec.rank, ranks=spec.world_size, dealt=spec.dealt),
            )
            self._loader = DataLoader(self._chunked, batch_size=None, **options)
        else:
            self.feed = IndexFeed(connection, spec.chunk_size, workers)
            dataset = IndexedDataset(spec.source, preparation)
            self._loader = DataLoader(dataset, batch_sampler=self.feed, **options)

    def begin(self, epoch: EpochSpec, check: Callable[[], None] = lambda: None) -> None:
        """Starts the workers. Must be called before other threads start: workers may be forked, and
        a fork copies locks that other threads hold, for which the worker would wait forever.

        Args:
            check: raises an exception once the pass has failed or was left.

        Raises: as `chunks`.
        """
        seed = rank_seed(self._spec.seed, epoch.epoch, self._spec.rank)
        self._generator.manual_seed(seed)
        if self.feed is not None:
            self.feed.serial = epoch.serial
            self.feed.taken = epoch.start.taken
            self.feed.check = check
            self.feed.epoch_seed = epoch_seed(self._spec.seed, epoch.epoch)
            self.feed.deals = self.feed.starting = epoch.entries is not None
        if self._chunked is not None:
            self._chunked.begin(epoch.worker_states)
            if isinstance(mixed := self._chunked.dataset, MixedStream):
                spec = self._spec
                ranks = {"rank": spec.rank, "ranks": spec.world_size}
                mixed.begin(epoch=epoch.epoch, seed=spec.seed, **ranks)
        with self._explaining():
            try:
                self._iterator = iter(self._loader)
            except OSError as error:
                if not self._spec.num_workers:  # then it is the dataset's
                    raise
                raise could_not_start(f"the workers of rank {self._spec.rank}", error) from error
        if self.feed is not None:
            self.feed.starting = False

    def chunks(
        self, epoch: EpochSpec, log: WorkerStateLog | None
    ) -> Generator[NumberedChunk, None, None]:
        """All chunks of this rank's share of an epoch, in order.

        Args:
            log: records the chunks of an iterable dataset.

        Raises:
            SampleError: a sample cannot be used.
            Exception: whatever the inner loader raises when a worker dies or hangs.
        """
        if self.feed is not None:
            yield from self._indexed(self._received(), self.feed)
        else:
            assert log is not None
            yield from self._streamed(self._received(), epoch, log)

    def _received(self) -> Iterator[Chunk]:
        iterator, self._iterator = self._iterator, iter(())  # the workers end with the pass
        while True:
            with self._explaining():
                chunk = next(iterator, None)
            if chunk is None:
                return
            yield chunk

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        iterable, num_workers = self._spec.iterable, self._spec.num_workers
        try:
            with raising_worker_deaths() if num_workers else contextlib.nullcontext():
                yield
        except Exception as error:
            explained = explain_worker_error(error, iterable=iterable, num_workers=num_workers)
            if explained is error:
                raise
            raise explained from error

    def _indexed(self, chunks: Iterator[Chunk], feed: IndexFeed) -> Iterator[NumberedChunk]:
        for chunk in chunks:
            numbers, indices = feed.requested.popleft()
            yield NumberedChunk(chunk, np.array(numbers, np.int64), indices)

    def _streamed(
        self, chunks: Iterator[Chunk], epoch: EpochSpec, log: WorkerStateLog
    ) -> Iterator[NumberedChunk]:
        ended: set[int] = set()
        for chunk in chunks:
            begin = log.add(chunk)
            positions, remaining = epoch.remaining.select(begin, chunk.size)
            numbers = np.full(chunk.size, TRAINED)
            numbers[positions] = remaining
            assert chunk.origin is not None
            yield NumberedChunk(chunk, numbers, chunk.origin.names)
            if chunk.origin.ended:
                ended.add(chunk.origin.worker)
            if len(ended) == max(self._spec.num_workers, 1):
                return
