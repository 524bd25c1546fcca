"""The sample that a rank trains on in steps for which it has none left."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.errors import SampleError
from evenstep.loader.transport import codec

__all__ = ["FillerSample", "pack_sample"]


def pack_sample(sample: Any) -> bytes:
    """A sample as bytes, to be lent to a rank that has none."""
    data, buffers = codec.dumps(sample)
    return pickle.dumps((data, [bytearray(buffer) for buffer in buffers]))


class FillerSample:
    """The shortest sample seen so far; on a rank that sees none, one of another rank."""

    def __init__(self) -> None:
        self._length: int | None = None
        self._packed: tuple[bytes, list[bytearray]] | None = None

    @classmethod
    def of(cls, sample: Any) -> FillerSample:
        spare = cls()
        spare.offer([sample], np.ones(1, np.int64))
        return spare

    def offer(self, samples: list[Any], lengths: npt.NDArray[np.int64]) -> None:
        best = int(np.argmin(lengths))
        if self._length is None or lengths[best] < self._length:
            self._length = int(lengths[best])
            data, buffers = codec.dumps(samples[best])
            # A copy of its own: the sample's memory must go back to the worker.
            self._packed = data, [bytearray(buffer) for buffer in buffers]

    def borrow(self, packed: bytes) -> None:
        """Takes over what `pack_sample` made on another rank."""
        if self._packed is None and packed:
            self._packed = pickle.loads(packed)

    def sample(self) -> Any:
        if self._packed is None:
            raise SampleError(
                "this rank has no sample to fill steps with, and no other rank lent it one; give "
                'every rank at least one sample, or use exhausted="stop"'
            )
        return codec.loads(self._packed[0], copy.deepcopy(self._packed[1]))
