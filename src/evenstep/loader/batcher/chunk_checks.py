"""Chunks from the workers -> `ReadySamples`, for the store and the protocol.

Those are what remains of a chunk once bad samples are counted, samples already trained on are
dropped, and those of a resumed round are found to measure the same as before. `FillerSample` is the
one that a rank runs zero-loss steps with, once it has no samples left for the step.
"""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.loader.batcher.batcher_messages import BadSample, EpochSpec, LoaderSpec
from evenstep.loader.transport.shared_memory import PackedObject, Reader, from_buffers, to_buffers
from evenstep.loader.workers.chunks import Chunk
from evenstep.protocol.window_buffer import read_columns


def pack_sample(sample: Any) -> bytes:
    """A sample as bytes, to lend it to a rank that has none."""
    data, buffers = to_buffers(sample)
    return pickle.dumps((data, [bytearray(buffer) for buffer in buffers]))


class FillerSample:
    """The shortest sample seen so far; on a rank that sees none, one that another rank lends."""

    def __init__(self) -> None:
        self._length: int | None = None
        self._packed: tuple[bytes, list[bytearray]] | None = None

    @classmethod
    def of(cls, sample: Any) -> FillerSample:
        filler_sample = cls()
        filler_sample.offer([sample], np.ones(1, np.int64))
        return filler_sample

    def offer(self, samples: list[Any], lengths: Int64Array) -> None:
        """Keeps a copy of the shortest of these samples if it is the shortest so far."""
        shortest = int(np.argmin(lengths))
        if self._length is None or lengths[shortest] < self._length:
            self._length = int(lengths[shortest])
            data, buffers = to_buffers(samples[shortest])
            # Copied, since the sample's own memory must go back to the worker.
            self._packed = data, [bytearray(buffer) for buffer in buffers]

    def borrow(self, packed: bytes) -> None:
        """Uses what `pack_sample` made on another rank, if this rank has no sample yet."""
        if self._packed is None and packed:
            self._packed = pickle.loads(packed)

    def sample(self) -> Any:
        """A new copy of the sample, as a collate function may change its arguments."""
        if self._packed is None:
            raise SampleError(
                "this rank has no sample to run zero-loss steps with, and no other rank lent it "
                'one; give every rank at least one sample, or use exhausted="stop"'
            )
        return from_buffers(self._packed[0], copy.deepcopy(self._packed[1]))


TRAINED = -1
"""In place of an arrival number: trained on before, so not wanted again."""


class NumberedChunk(NamedTuple):
    """A chunk with the arrival numbers of its samples."""

    chunk: Chunk
    numbers: Int64Array
    """[chunk.size] arrival numbers; `TRAINED` for samples that are not wanted."""
    indices: tuple[Any, ...] | None
    """[chunk.size] dataset indices; None for an iterable dataset."""


@dataclass(frozen=True)
class ReadySamples:
    """Samples that passed all checks, and what planning needs to know about them."""

    numbers: Int64Array
    """[samples] arrival numbers, increasing."""
    columns: Int64Array
    """[samples, 6 or 7] what `Measure` counts, and of a mixture the number of the source."""
    digests: Int64Array | None
    """[samples] see `Chunk.digests`."""
    samples: Sequence[Any]
    indices: Sequence[Any]
    """[samples] dataset indices; None for each sample of an iterable dataset."""
    planned: int
    """How many samples, from the first on, belong to a resumed round: they are planned already."""
    end: int = 0
    """All samples with lower arrival numbers have come, or are bad."""

    left_out: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Arrival numbers of samples that are too long and were left out."""

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


class ChunkChecks:
    """Checks the chunks of one epoch. Used by the intake thread, except `take_bad_before`."""

    def __init__(self, spec: LoaderSpec, epoch: EpochSpec, filler_sample: FillerSample) -> None:
        self._spec = spec
        self._epoch = epoch
        self.filler_sample = filler_sample
        self._may_run_fillers = spec.world_size > 1 and spec.faults.exhausted == "pad"
        self._reader = Reader()
        self._bad: deque[tuple[int, BadSample]] = deque()  # with arrival numbers, increasing
        self._bad_count = epoch.skipped

    def ready(self, numbered: NumberedChunk) -> ReadySamples | None:
        """The samples of a chunk that are wanted; None for a chunk that tells nothing.

        Raises:
            SampleError: too many samples are bad, or one differs from when the epoch was planned.
        """
        chunk, numbers, indices = numbered
        left_out: list[int] = []
        for position, reason, counts in chunk.bad:
            if (number := int(numbers[position])) == TRAINED:
                continue
            if number < self._epoch.start.taken:
                raise SampleError(f"{reason}; it was usable when the checkpoint was made")
            if counts:
                self._skip(number, indices[position] if indices is not None else None, reason)
            else:
                left_out.append(number)
        payload = chunk.payload
        columns = read_columns(chunk.columns.T, self._epoch.start.labels).T
        digests, positions = chunk.digests, chunk.positions
        if self._spec.sources and indices is not None:
            drawn = [self._spec.dataset.source_of(indices[place]) for place in positions.tolist()]
            sources = [self._spec.sources.index(name) for name in drawn]
            columns = np.column_stack([columns, np.array(sources, np.int64)])
        with _naming("unpickling", numbers, indices):
            samples = self._reader.unpack(payload) if isinstance(payload, PackedObject) else payload
        if samples and self._may_run_fillers:
            with _naming("pickling", numbers, indices):
                self.filler_sample.offer(samples, columns[:, 0])
        kept = np.flatnonzero(numbers[positions] != TRAINED)
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
        planned = self._check_planned(names, numbers, columns)
        too_long = np.array(left_out, np.int64)
        return ReadySamples(numbers, columns, digests, samples, names, planned, end, too_long)

    def take_bad_before(self, number: int | None = None) -> tuple[BadSample, ...]:
        """Skipped samples with arrival numbers below `number`; each is returned once."""
        bad = []
        while self._bad and (number is None or self._bad[0][0] < number):
            bad.append(self._bad.popleft()[1])
        return tuple(bad)

    def _skip(self, number: int, index: Any, reason: str) -> None:
        self._bad_count += 1
        most = self._spec.faults.skip_bad_samples
        name = index if index is not None else number
        if self._bad_count > most:
            raise SampleError(
                f"{reason} (bad sample number {self._bad_count} of epoch {self._epoch.epoch} on "
                f"rank {self._spec.rank}, over skip_bad_samples={most})"
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
            if (old[:_COMPARED] != new[:_COMPARED]).any():
                name = f"sample {index!r}" if index is not None else f"sample number {number}"
                raise SampleError(
                    f"{name} has {_counts(new)} now and had {_counts(old)} when the checkpoint was "
                    "made, so its batch cannot be made again; make what the dataset returns a "
                    "function of the index, or pass faults=evenstep.Faults(repeatable=False), "
                    "which forms new batches of what remains"
                )
        return planned


_COMPARED = 3
"""Columns that states of all releases hold."""


@contextlib.contextmanager
def _naming(what: str, numbers: Int64Array, indices: Sequence[Any] | None) -> Iterator[None]:
    """What the user's code raises within becomes a `SampleError` that names the chunk's samples."""
    try:
        yield
    except (EvenstepError, ProcessLookupError):  # the worker has died
        raise
    except BaseException as error:
        names = list(indices) if indices is not None else f"number {numbers.tolist()}"
        raise SampleError(
            f"one of the samples {names}: its {what} raised {described(error)}"
        ) from error


def _counts(column: Int64Array) -> str:
    length, supervised, patches, *_ = column.tolist()
    return f"{length:,} tokens ({supervised:,} supervised, {patches:,} patches)"
