"""Samples from the workers, in order, with their identities.

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

import torch
from torch.utils.data import DataLoader

from evenstep.errors import LoaderDiedError, SampleError
from evenstep.loader.chunks import Chunk, ChunkCollate, IndexedDataset
from evenstep.loader.spec import EpochSpec, LoaderSpec
from evenstep.loader.watch import EndWithParent

__all__ = ["Arrival", "FeederError", "IndexFeed", "Intake", "worker_seed"]

_on_death: Callable[[int, Any], Any] | None = None  # torch's handler, which it sets once a process

_CAUGHT = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\n")


class FeederError(SampleError):
    """The sampler raised in the trainer process."""


@dataclass(frozen=True)
class Arrival:
    """One chunk and where its samples come from."""

    chunk: Chunk
    indices: tuple[Any, ...] | None
    """Dataset indices of the chunk's samples; None for an iterable dataset."""
    spare: bool = False
    """True for a chunk that only serves filler steps: its sample is not part of the epoch."""


class IndexFeed:
    """The batch sampler of the inner loader: chunks of indices out of the feeder's pipe.

    A rank that is given no index at all still needs one real sample for its filler steps, so it
    asks for the dataset's first.
    """

    def __init__(self, connection: Connection, chunk_size: int, spare_index: Any) -> None:
        self._connection = connection
        self._chunk_size = chunk_size
        self._spare_index = spare_index
        self.serial = 0
        self.asked: deque[tuple[tuple[Any, ...], bool]] = deque()
        """Chunks asked for and not yet delivered, in order, and whether each is a spare."""

    def __iter__(self) -> Iterator[list[Any]]:
        self.asked.clear()
        waiting: list[Any] = []
        any_index = False
        while True:
            serial, block = self._connection.recv()
            if serial != self.serial:
                continue  # left over from an abandoned pass
            if isinstance(block, Exception):
                raise block
            waiting.extend(block or ())
            any_index = any_index or bool(waiting)
            while len(waiting) >= self._chunk_size or (block is None and waiting):
                yield self._ask(waiting[: self._chunk_size])
                del waiting[: self._chunk_size]
            if block is None:
                if not any_index and self._spare_index is not None:
                    yield self._ask([self._spare_index], spare=True)
                return

    def _ask(self, indices: list[Any], spare: bool = False) -> list[Any]:
        self.asked.append((tuple(indices), spare))
        return indices


def worker_seed(spec: LoaderSpec, epoch: int) -> torch.Generator:
    """Seeds the workers' random state: a function of (seed, epoch, rank) and the worker alone."""
    generator = torch.Generator()
    generator.manual_seed(
        ((spec.seed * 1_000_003 + epoch) * 1_000_003 + spec.rank) % (1 << 63)  # torch takes 64 bits
    )
    return generator


class Intake:
    """Owns the inner loader. `chunks` may be run once per epoch."""

    def __init__(self, spec: LoaderSpec, feed: Connection | None) -> None:
        self._spec = spec
        self._generator = torch.Generator()
        self._feed: IndexFeed | None = None
        workers = spec.num_workers
        options: dict[str, Any] = {
            "num_workers": workers,
            "collate_fn": ChunkCollate(
                measure=spec.measure,
                policy=spec.policy,
                indexed=not spec.iterable,
                packed=workers > 0,
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
            self._loader = DataLoader(spec.dataset, batch_size=spec.chunk_size, **options)
        else:
            assert feed is not None
            first = 0 if _has_first(spec.dataset) else None
            self._feed = IndexFeed(feed, spec.chunk_size, first)
            self._loader = DataLoader(
                IndexedDataset(spec.dataset), batch_sampler=self._feed, **options
            )

    def chunks(self, epoch: EpochSpec) -> Generator[Arrival, None, None]:
        """All chunks of this rank's share of an epoch, in order.

        Raises:
            SampleError: a sample cannot be used.
            Exception: whatever the inner loader raises when a worker dies or hangs.
        """
        try:
            with _hearing_of_deaths() if self._spec.num_workers else contextlib.nullcontext():
                yield from self._chunks(epoch)
        except Exception as error:
            explained = self._explain(error)
            if explained is error:
                raise
            raise explained from error

    def _chunks(self, epoch: EpochSpec) -> Iterator[Arrival]:
        self._generator.set_state(worker_seed(self._spec, epoch.epoch).get_state())
        if self._feed is not None:
            self._feed.serial = epoch.serial
        for chunk in self._loader:
            indices, spare = self._feed.asked.popleft() if self._feed else (None, False)
            yield Arrival(chunk, indices, spare)

    def _explain(self, error: Exception) -> Exception:
        """A `SampleError` where the dataset is at fault, and nothing but what it has to say: torch
        passes on a worker's error with the worker's whole traceback for a message."""
        text = str(error)
        caught = _CAUGHT.match(text)
        name = caught[1] if caught else type(error).__name__
        told = text.rpartition(f"{name}: ")[2].strip() if caught else text
        if isinstance(error, SampleError):
            return SampleError(told) if caught else error
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


def _has_first(dataset: Any) -> bool:
    try:
        return len(dataset) > 0
    except (TypeError, NotImplementedError):
        return False
