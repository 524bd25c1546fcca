"""Samples from the workers, in order: numbered, checked, and ready for the store and the protocol.

The workers are an ordinary `torch.utils.data.DataLoader` that delivers chunks. In order of
transport: a `ChunkRequest` goes to a worker, a `Chunk` comes back from it, and `ReadySamples` are
what remains of the chunk once bad samples are counted, samples already trained on are dropped, and
those of a resumed round are found to measure the same as before.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader

from evenstep.arrays import Int64Array
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.loader.batcher.filler_sample import FillerSample
from evenstep.loader.batcher.index_feed import IndexFeed
from evenstep.loader.batcher.progress import BadSample
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.batcher.worker_errors import explain_worker_error, raising_worker_deaths
from evenstep.loader.transport.shared_memory import PackedObject, Reader
from evenstep.loader.watchdog import Watchdog
from evenstep.loader.workers.chunks import Chunk, ChunkCollate, IndexedDataset
from evenstep.loader.workers.iterable import ChunkedIterable, WorkerStateLog
from evenstep.loader.workers.queues import context_of
from evenstep.loader.workers.seeding import epoch_seed, rank_seed
from evenstep.processes import EndWithParent

_TRAINED = -1  # in place of an arrival number: trained on before, so not wanted again


class NumberedChunk(NamedTuple):
    """A chunk with the arrival numbers of its samples."""

    chunk: Chunk
    numbers: Int64Array
    """[chunk.size] arrival numbers; `_TRAINED` for samples that are not wanted."""
    indices: tuple[Any, ...] | None
    """[chunk.size] dataset indices; None for an iterable dataset."""


@dataclass(frozen=True)
class ReadySamples:
    """Samples that passed all checks, and what planning needs to know about them."""

    numbers: Int64Array
    """[samples] arrival numbers, increasing."""
    columns: Int64Array
    """[samples, 3] length, supervised tokens, patches."""
    digests: Int64Array | None
    """[samples] see `Chunk.digests`."""
    samples: Sequence[Any]
    indices: Sequence[Any]
    """[samples] dataset indices; None for each sample of an iterable dataset."""
    planned: int
    """How many samples, from the first on, belong to a resumed round: they are planned already."""
    end: int = 0
    """All samples with lower arrival numbers have come, or are bad."""

    def unplanned(self) -> ReadySamples | None:
        """The part that the protocol still has to receive, without the samples themselves."""
        if self.planned and self.planned == len(self.numbers) and self.end <= self.numbers[-1] + 1:
            return None
        return replace(
            self,
            numbers=self.numbers[self.planned :],
            columns=self.columns[self.planned :],
            digests=None if self.digests is None else self.digests[self.planned :],
            samples=(),
            indices=(),
            planned=0,
        )


class Intake:
    """Owns the inner loader. For each epoch call `begin`, then run `chunks`."""

    def __init__(
        self, spec: LoaderSpec, feed: Connection | None, watchdog: Watchdog | None = None
    ) -> None:
        """
        Args:
            feed: where the feeder's blocks arrive; None for an iterable dataset.
            watchdog: of this process, where it prepares samples itself.
        """
        self._spec = spec
        self._generator = torch.Generator()
        self._feed: IndexFeed | None = None
        self._chunked: ChunkedIterable | None = None
        self._iterator: Iterator[Chunk] = iter(())
        workers = spec.num_workers
        skip_bad = spec.skip_bad_samples > 0
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": ChunkCollate(
                measure=spec.measure,
                policy=spec.policy,
                skip_bad=skip_bad,
                packed=workers > 0,
                watchdog=watchdog,
            ),
            "timeout": spec.timeout if workers else 0,
            "worker_init_fn": EndWithParent(spec.worker_init_fn),
            "generator": self._generator,
            "persistent_workers": spec.persistent_workers,
        }
        if workers:
            options["prefetch_factor"] = spec.prefetch_factor
            options["multiprocessing_context"] = context_of(spec.start_method)
        if spec.iterable:
            self._chunked = ChunkedIterable(
                spec.dataset, spec.chunk_size, replays=spec.replay, watchdog=watchdog
            )
            self._loader = DataLoader(self._chunked, batch_size=None, **options)
        else:
            assert feed is not None
            self._feed = IndexFeed(feed, spec.chunk_size)
            dataset = IndexedDataset(spec.dataset, skip_bad=skip_bad, watchdog=watchdog)
            self._loader = DataLoader(dataset, batch_sampler=self._feed, **options)

    def request(self, entries: Int64Array | None) -> None:
        """Asks the feeder for the indices at these entries of the ranks' stream; None says that no
        more will be asked for. Called by another thread than all else."""
        assert self._feed is not None
        self._feed.request(entries)

    def begin(self, epoch: EpochSpec, check: Callable[[], None] = lambda: None) -> None:
        """Starts the workers. Must be called before other threads start: workers may be forked, and
        a fork copies a lock that another thread holds, for which the worker would wait for ever.

        Args:
            check: raises an exception once the pass has failed or was left.

        Raises: as `chunks`.
        """
        seed = rank_seed(self._spec.seed, epoch.epoch, self._spec.rank)
        self._generator.manual_seed(seed)
        if self._feed is not None:
            self._feed.serial = epoch.serial
            self._feed.check = check
            self._feed.epoch_seed = epoch_seed(self._spec.seed, epoch.epoch)
            self._feed.deals = self._feed.starting = epoch.entries is not None
        if self._chunked is not None:
            self._chunked.begin(epoch.worker_states)
        with self._explaining():
            self._iterator = iter(self._loader)
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
        iterator, self._iterator = self._iterator, iter(())  # the workers end with the pass
        with self._explaining():
            if self._feed is not None:
                yield from self._indexed(iterator, self._feed)
            else:
                assert log is not None
                yield from self._streamed(iterator, epoch, log)

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
            numbers = np.full(chunk.size, _TRAINED)
            numbers[positions] = remaining
            yield NumberedChunk(chunk, numbers, None)
            assert chunk.origin is not None
            if chunk.origin.ended:
                ended.add(chunk.origin.worker)
            if len(ended) == max(self._spec.num_workers, 1):
                return


class ChunkChecks:
    """Checks the chunks of one epoch. Used by the intake thread, except `take_bad_before`."""

    def __init__(self, spec: LoaderSpec, epoch: EpochSpec, filler_sample: FillerSample) -> None:
        self._spec = spec
        self._epoch = epoch
        self._filler_sample = filler_sample
        self._may_run_fillers = spec.world_size > 1 and spec.exhausted == "pad"
        self._reader = Reader()
        self._bad: deque[tuple[int, BadSample]] = deque()  # with arrival numbers, increasing
        self._bad_count = epoch.skipped

    def ready(self, numbered: NumberedChunk) -> ReadySamples | None:
        """The samples of a chunk that are wanted; None for a chunk that tells nothing.

        Raises:
            SampleError: too many samples are bad, or one differs from when the epoch was planned.
        """
        chunk, numbers, indices = numbered
        for position, reason in chunk.bad:
            if (number := int(numbers[position])) != _TRAINED:
                self._skip(number, indices[position] if indices is not None else None, reason)
        payload = chunk.payload
        columns, digests, positions = chunk.columns, chunk.digests, chunk.positions
        with _naming("unpickling", numbers, indices):
            samples = self._reader.unpack(payload) if isinstance(payload, PackedObject) else payload
        if samples and self._may_run_fillers:
            with _naming("pickling", numbers, indices):
                self._filler_sample.offer(samples, columns[:, 0])
        kept = np.flatnonzero(numbers[positions] != _TRAINED)
        if len(kept) < len(samples):
            samples = [samples[i] for i in kept.tolist()]
            columns, positions = columns[kept], positions[kept]
            digests = None if digests is None else digests[kept]
        if not len(numbers):
            return None
        end = int(numbers[-1]) + 1
        numbers = numbers[positions]
        names: Sequence[Any] = [None] * len(samples)
        if indices is not None:
            names = tuple(indices[position] for position in positions.tolist())
        if self._epoch.expected is not None:
            self._epoch.expected.check(numbers, columns[:, 0], names)
        planned = self._check_planned(names, numbers, columns)
        return ReadySamples(numbers, columns, digests, samples, names, planned, end)

    def take_bad_before(self, number: int | None = None) -> tuple[BadSample, ...]:
        """Skipped samples with arrival numbers below `number`; each is returned once."""
        bad = []
        while self._bad and (number is None or self._bad[0][0] < number):
            bad.append(self._bad.popleft()[1])
        return tuple(bad)

    def _skip(self, number: int, index: Any, reason: str) -> None:
        if number < self._epoch.start.taken:
            raise SampleError(f"{reason}; it was usable when the checkpoint was made")
        self._bad_count += 1
        name = index if index is not None else number
        if self._bad_count > self._spec.skip_bad_samples:
            raise SampleError(
                f"{reason} (bad sample number {self._bad_count} of epoch {self._epoch.epoch} on "
                f"rank {self._spec.rank}, over skip_bad_samples={self._spec.skip_bad_samples})"
            )
        self._bad.append((number, BadSample(self._epoch.epoch, name, reason)))

    def _check_planned(
        self, indices: Sequence[Any], numbers: Int64Array, columns: Int64Array
    ) -> int:
        """How many samples belong to the resumed round. It is planned by what they measured when it
        first began, so they must measure the same now."""
        start = self._epoch.start
        planned = int(np.searchsorted(numbers, start.taken))
        then = start.columns[:, np.searchsorted(start.numbers, numbers[:planned])].T
        for index, number, old, new in zip(indices, numbers.tolist(), then, columns):
            if (old != new).any():
                name = f"sample {index!r}" if index is not None else f"sample number {number}"
                raise SampleError(
                    f"{name} has {_counts(new)} now and had {_counts(old)} when the checkpoint was "
                    "made, so its batch cannot be made again; make what the dataset returns a "
                    "function of the index, or resume from evenstep.merge_states of all ranks' "
                    "states, which forms new batches"
                )
        return planned


@contextlib.contextmanager
def _naming(what: str, numbers: Int64Array, indices: Sequence[Any] | None) -> Iterator[None]:
    """What the user's code raises within becomes a `SampleError` that names the chunk's samples."""
    try:
        yield
    except EvenstepError:
        raise
    except ProcessLookupError:  # the worker has died
        time.sleep(0.5)  # in which torch raises how, from a signal handler
        raise
    except BaseException as error:
        names = list(indices) if indices is not None else f"number {numbers.tolist()}"
        raise SampleError(
            f"one of the samples {names}: its {what} raised {described(error)}"
        ) from error


def _counts(column: Int64Array) -> str:
    length, supervised, patches = column.tolist()
    return f"{length:,} tokens ({supervised:,} supervised, {patches:,} patches)"
