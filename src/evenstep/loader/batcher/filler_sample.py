"""The sample that a rank runs zero-loss steps with, once it has no samples left for the step."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import SampleError
from evenstep.loader.transport.shared_memory import from_buffers, to_buffers


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
