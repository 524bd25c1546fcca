"""Samples and batches -> a small pickle and a list of buffers, and back without copying.

Tensors and arrays leave the pickle as buffers (pickle protocol 5), so their bytes are copied once,
into shared memory, and are used there in place. Anything that is not a plain CPU tensor is pickled
the ordinary way, so every picklable sample works.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch


def _rebuild(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.Tensor or not _is_plain(obj):
            return NotImplemented
        # Viewed as bytes, since NumPy has no bfloat16 or float8.
        flat: Any = obj.detach().contiguous().view(-1).view(torch.uint8).numpy()
        return _rebuild, (pickle.PickleBuffer(flat), obj.dtype, tuple(obj.shape))


def _is_plain(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and tensor.numel() > 0
        and not tensor.requires_grad
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def dumps(obj: Any) -> tuple[bytes, list[memoryview]]:
    """The pickle of `obj`, and the raw bytes of its tensors and arrays in order."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(obj)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def loads(data: bytes, buffers: Sequence[Any]) -> Any:
    """Inverse of `dumps`. The object's tensors and arrays use `buffers`, which must be writable,
    in place and keep them alive."""
    return pickle.loads(data, buffers=buffers)
