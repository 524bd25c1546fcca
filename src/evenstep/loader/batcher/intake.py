"""Samples from the workers, in order and numbered, for one epoch after the other.

The workers are an ordinary `torch.utils.data.DataLoader` that delivers chunks: a `ChunkRequest`
goes to a worker, a `Chunk` comes back from it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from evenstep.arrays import Int64Array
from evenstep.loader.batcher.chunk_checks import TRAINED, NumberedChunk
from evenstep.loader.batcher.index_feed import IndexFeed
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.batcher.worker_errors import (
    could_not_start,
    explain_worker_error,
    raising_worker_deaths,
)
from evenstep.loader.watchdog import Watchdog
from evenstep.loader.workers.chunks import Chunk, ChunkCollate, IndexedDataset, Preparation
from evenstep.loader.workers.iterable import ChunkedIterable, WorkerStateLog
from evenstep.loader.workers.seeding import epoch_seed, rank_seed
from evenstep.loader.workers.worker_start import WorkerStart, context_of


class Intake:
    """Owns the inner loader. For each epoch call `begin`, then run `chunks`."""

    def __init__(
        self,
        spec: LoaderSpec,
        feed: Connection | None,
        watchdog: Watchdog | None = None,
        calling: contextlib.AbstractContextManager[Any] | None = None,
    ) -> None:
        """
        Args:
            feed: where the feeder's blocks arrive; None for an iterable dataset.
            watchdog: of this process, where it prepares samples itself.
            calling: see `ChunkCollate`.
        """
        self._spec = spec
        self._generator = torch.Generator()
        self._feed: IndexFeed | None = None
        self._chunked: ChunkedIterable | None = None
        self._iterator: Iterator[Chunk] = iter(())
        workers = spec.num_workers
        skip_bad = spec.faults.skip_bad_samples > 0
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": ChunkCollate(
                measure=spec.measure,
                policy=spec.policy,
                skip_bad=skip_bad,
                packed=workers > 0,
                watchdog=watchdog,
                calling=calling,
            ),
            "timeout": spec.timeout if workers else 0,
            "worker_init_fn": WorkerStart(spec.worker_init_fn),
            "generator": self._generator,
            "persistent_workers": spec.persistent_workers,
        }
        if workers:
            options["prefetch_factor"] = spec.prefetch_factor
            options["multiprocessing_context"] = context_of(spec.start_method)
        if spec.iterable:
            self._chunked = ChunkedIterable(
                spec.dataset,
                spec.chunk_size,
                replays=spec.faults.replay,
                preparation=Preparation(spec.prepare, skip_bad=skip_bad),
                watchdog=watchdog,
            )
            self._loader = DataLoader(self._chunked, batch_size=None, **options)
        else:
            assert feed is not None
            self._feed = IndexFeed(feed, spec.chunk_size)
            dataset = IndexedDataset(
                spec.source, skip_bad=skip_bad, prepare=spec.prepare, watchdog=watchdog
            )
            self._loader = DataLoader(dataset, batch_sampler=self._feed, **options)

    def request(self, entries: Int64Array | None) -> None:
        """Asks the feeder for the indices at these entries of the ranks' stream; None says that no
        more will be asked for. Called by another thread than all else."""
        assert self._feed is not None
        self._feed.request(entries)

    def drain(self, over: threading.Event) -> None:
        """Once no more samples are prepared: see `IndexFeed.drain`."""
        if self._feed is not None and self._feed.deals:
            self._feed.drain(over)

    def begin(self, epoch: EpochSpec, check: Callable[[], None] = lambda: None) -> None:
        """Starts the workers. Must be called before other threads start: workers may be forked, and
        a fork copies locks that other threads hold, for which the worker would wait forever.

        Args:
            check: raises an exception once the pass has failed or was left.

        Raises: as `chunks`.
        """
        seed = rank_seed(self._spec.seed, epoch.epoch, self._spec.rank)
        self._generator.manual_seed(seed)
        if self._feed is not None:
            self._feed.serial = epoch.serial
            self._feed.taken = epoch.start.taken
            self._feed.check = check
            self._feed.epoch_seed = epoch_seed(self._spec.seed, epoch.epoch)
            self._feed.deals = self._feed.starting = epoch.entries is not None
        if self._chunked is not None:
            self._chunked.begin(epoch.worker_states)
        with self._explaining():
            try:
                self._iterator = iter(self._loader)
            except OSError as error:
                if not self._spec.num_workers:  # then it is the dataset's
                    raise
                raise could_not_start(f"the workers of rank {self._spec.rank}", error) from error
        if self._feed is not None:
            self._feed.starting = False

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
        if self._feed is not None:
            yield from self._indexed(self._received(), self._feed)
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
            yield NumberedChunk(chunk, numbers, None)
            assert chunk.origin is not None
            if chunk.origin.ended:
                ended.add(chunk.origin.worker)
            if len(ended) == max(self._spec.num_workers, 1):
                return
