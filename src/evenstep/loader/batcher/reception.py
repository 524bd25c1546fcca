"""What becomes of a chunk as it arrives: bad samples are counted, old ones put aside, and those of
a round that is gone on with compared with what they were."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import SampleError
from evenstep.loader.batcher.filler_sample import FillerSample
from evenstep.loader.batcher.intake import Arrival
from evenstep.loader.batcher.progress import BadSample
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.transport.shared_memory import PackedObject, Reader

__all__ = ["Received", "Reception"]


@dataclass(frozen=True)
class Received:
    """The samples of a chunk that are wanted."""

    samples: list[Any]
    indices: Sequence[Any]
    numbers: Int64Array
    columns: Int64Array
    planned: int
    """How many of them, from the first on, belong to the round that is gone on with."""
    digests: Int64Array | None
    """[samples] see `Chunk.digests`."""


class Reception:
    """For one epoch. Used by one thread, but for `bad_before`."""

    def __init__(self, spec: LoaderSpec, epoch: EpochSpec, spare: FillerSample) -> None:
        self._spec = spec
        self._epoch = epoch
        self._spare = spare
        self._fills_steps = spec.world_size > 1 and spec.exhausted == "pad"
        self._reader = Reader()
        self._bad: deque[tuple[int, BadSample]] = deque()  # with arrival numbers, increasing
        self._bad_count = epoch.skipped

    def open(self, arrival: Arrival) -> Received | None:
        """What is wanted of an arrival; None for nothing.

        Raises:
            SampleError: there are too many bad samples, or one is not what it was.
        """
        for number, index, reason in arrival.bad:
            self._skip(number, index, reason)
        payload = arrival.chunk.payload
        samples = self._reader.unpack(payload) if isinstance(payload, PackedObject) else payload
        columns, digests = arrival.chunk.columns, arrival.chunk.digests
        if samples and self._fills_steps:
            self._spare.offer(samples, columns[:, 0])
        if len(arrival.kept) < len(samples):
            samples = [samples[i] for i in arrival.kept.tolist()]
            columns = columns[arrival.kept]
            digests = digests if digests is None else digests[arrival.kept]
        if not samples:
            return None
        indices = arrival.indices or [None] * len(samples)
        if self._epoch.expected is not None:
            self._epoch.expected.check(arrival.numbers, columns[:, 0], indices)
        planned = self._check_planned(indices, arrival.numbers, columns)
        return Received(samples, indices, arrival.numbers, columns, planned, digests)

    def bad_before(self, number: int | None = None) -> tuple[BadSample, ...]:
        """Samples left out with arrival numbers below `number`, each given once."""
        bad = []
        while self._bad and (number is None or self._bad[0][0] < number):
            bad.append(self._bad.popleft()[1])
        return tuple(bad)

    def _skip(self, number: int, index: Any, reason: str) -> None:
        if number < self._epoch.start.taken:
            raise SampleError(f"{reason}; it could be had when the checkpoint was made")
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
        """The round was planned by what its samples measured when it began, so that they must
        measure the same now."""
        start = self._epoch.start
        planned = int(np.searchsorted(numbers, start.taken))
        then = start.columns[:, np.searchsorted(start.numbers, numbers[:planned])].T
        for index, number, old, new in zip(indices, numbers.tolist(), then, columns):
            if (old != new).any():
                name = f"sample {index!r}" if index is not None else f"sample number {number}"
                raise SampleError(
                    f"{name} has {_counts(new)} now and had {_counts(old)} when the checkpoint was "
                    "made, so its batch cannot come again; make what the dataset returns a "
                    "function of the index, or go on with evenstep.merge_states of all ranks' "
                    "states, which forms new batches"
                )
        return planned


def _counts(column: Int64Array) -> str:
    length, supervised, patches = column.tolist()
    return f"{length:,} tokens ({supervised:,} supervised, {patches:,} patches)"
