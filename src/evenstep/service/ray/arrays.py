"""Sends NumPy arrays outside the pickled rest of an answer, as copies that the receiver owns.

Ray itself gives views of its object store: they are read-only, and their contents are undefined
once the process has left Ray. A trainer keeps batches for longer than that, and a collate function
may write to its samples.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.service.ray.import_ray import import_ray

__all__ = ["register_arrays"]


def register_arrays() -> None:
    """Registers this serializer in this process, for all that it sends from now on."""
    import_ray()
    from ray.util import register_serializer

    register_serializer(np.ndarray, serializer=_packed, deserializer=_unpacked)


def _packed(array: npt.NDArray[Any]) -> tuple[Any, np.dtype[Any], tuple[int, ...]]:
    if array.dtype.hasobject:
        return list(array.flat), array.dtype, array.shape
    # As bytes: the buffer protocol knows neither dates nor Fortran order.
    plain = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return pickle.PickleBuffer(plain.data), array.dtype, array.shape


def _unpacked(packed: tuple[Any, np.dtype[Any], tuple[int, ...]]) -> npt.NDArray[Any]:
    held, dtype, shape = packed
    made: npt.NDArray[Any] = np.empty(shape, dtype)
    if dtype.hasobject:
        for place, value in enumerate(held):  # one by one, as they may be lists
            made.flat[place] = value
        return made
    made.reshape(-1).view(np.uint8)[:] = np.frombuffer(held, np.uint8)
    return made
