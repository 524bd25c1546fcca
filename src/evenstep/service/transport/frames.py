"""Values as frames: a pickle of everything small, and each large array or tensor as a frame of its
own, which is neither copied to be sent nor after it was received."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Frame = bytes | memoryview

OWN_FRAME_BYTES = 16 * 1024
"""Arrays from this size on have a frame of their own. Below it, a copy costs less than a frame, and
received frames may begin at any address, where arrays of numbers should not."""


COPIED_BYTES = 512 * 1024
"""ZeroMQ copies frames below this size to send them: to learn that one may be freed wakes a thread,
which takes longer."""


def to_frames(value: Any) -> list[Frame]:
    """A value that `from_frames` turns back, in this or another process.

    Raises:
        Exception: whatever pickling raises.
    """
    own: list[memoryview] = []

    def has_own_frame(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < OWN_FRAME_BYTES:
            return False
        own.append(raw)
        return True

    file = io.BytesIO()
    # The callback says whether a buffer stays within the pickle.
    _Pickler(file, 5, buffer_callback=lambda buffer: not has_own_frame(buffer)).dump(value)
    return [file.getbuffer(), *own]


def from_frames(frames: Sequence[Frame]) -> Any:
    """The value. Its large arrays and tensors are views of the frames, which they keep alive, and
    can be written to."""
    return pickle.loads(frames[0], buffers=frames[1:])


class _Pickler(pickle.Pickler):
    """Sends a tensor as an array of its bytes: torch's own way copies it, with the whole storage
    behind a view, and shares memory that somebody has to free."""

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor or value.is_sparse:
            return NotImplemented
        plain = value.detach().to("cpu").contiguous()
        # As bytes, for any dtype: NumPy has neither bfloat16 nor 8-bit floats. Even a tensor
        # without elements may have strides that cannot be viewed so.
        flat = plain.reshape(-1) if plain.numel() else plain.new_empty(0)
        array = flat.view(torch.uint8).numpy()
        return _tensor, (array, str(plain.dtype).removeprefix("torch."), tuple(plain.shape))


def _tensor(array: np.ndarray[Any, Any], dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    return torch.from_numpy(array).view(getattr(torch, dtype)).reshape(shape)
