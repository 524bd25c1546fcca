"""Sends arrays and tensors outside the pickled rest of an answer, as copies that the receiver owns.

Ray itself gives views of its object store: they are read-only, and their contents are undefined
once the process has left Ray. A trainer keeps batches for longer than that, and a collate function
may write to its samples. Torch's own way copies tensors into the pickled bytes, with the whole
storage behind a view.
"""

from __future__ import annotations

import pickle
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


@cache
def register_arrays() -> None:
    """Registers the serializer of arrays in this process. Idempotent."""
    from ray.util import register_serializer

    register_serializer(np.ndarray, serializer=_packed_array, deserializer=_unpacked_array)


@cache
def register_tensors() -> None:
    """Registers the serializer of tensors in this process, which imports torch. Idempotent."""
    import torch
    from ray.util import register_serializer

    register_serializer(torch.Tensor, serializer=_packed_tensor, deserializer=_unpacked_tensor)


def _packed_array(array: npt.NDArray[Any]) -> tuple[Any, np.dtype[Any], tuple[int, ...]]:
    if array.dtype.hasobject:
        return list(array.flat), array.dtype, array.shape
    # As bytes: the buffer protocol knows neither dates nor Fortran order.
    plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return pickle.PickleBuffer(plain.data), array.dtype, array.shape


def _unpacked_array(packed: tuple[Any, np.dtype[Any], tuple[int, ...]]) -> npt.NDArray[Any]:
    held, dtype, shape = packed
    made: npt.NDArray[Any] = np.empty(shape, dtype)
    if dtype.hasobject:
        for index, value in enumerate(held):  # one by one, as they may be lists
            made.flat[index] = value
        return made
    made.reshape(-1).view(np.uint8)[:] = np.frombuffer(held, np.uint8)
    return made


def _packed_tensor(tensor: torch.Tensor) -> tuple[Any, str, tuple[int, ...]]:
    import torch

    plain = tensor.detach().to("cpu").contiguous()
    name = str(plain.dtype).removeprefix("torch.")
    # As bytes, for any dtype: NumPy has neither bfloat16 nor 8-bit floats.
    return plain.reshape(-1).view(torch.uint8).numpy(), name, tuple(plain.shape)


def _unpacked_tensor(packed: tuple[Any, str, tuple[int, ...]]) -> torch.Tensor:
    import torch

    array, name, shape = packed
    return torch.from_numpy(array.copy()).view(getattr(torch, name)).reshape(shape)
