"""Pickle that gives up early: above some size, or where a copy would not be as good."""

from __future__ import annotations

import io
import pickle
from multiprocessing.shared_memory import ShareableList, SharedMemory
from types import FunctionType
from typing import Any

import numpy as np
import torch

from evenstep.errors import described


class NotPortable(Exception):
    """Something cannot be sent to another process, or would not be the same there. Says why."""


class LimitedPickler(pickle.Pickler):
    """Refuses what has many bytes, before it copies them, and memory that processes share."""

    def __init__(self, limit: int, protocol: int) -> None:
        self._limit = limit
        self._file = _Limited(limit)
        self.named: list[Any] = []
        """Classes and functions of the pickle, which it holds by name."""
        super().__init__(self._file, protocol)

    def bytes_of(self, obj: Any) -> bytes:
        """
        Raises:
            NotPortable: it cannot be pickled, is too large, or is memory that processes share.
        """
        try:
            self.dump(obj)
        except NotPortable:
            raise
        except Exception as error:  # a class may raise anything
            raise NotPortable(described(error)) from error
        return self._file.getvalue()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)):
            self.named.append(obj)
        elif isinstance(obj, torch.Tensor):
            _refuse_over(self._limit, obj.untyped_storage().nbytes())
            if obj.is_shared():  # type: ignore[no-untyped-call]
                raise NotPortable("it holds a tensor in shared memory")
        elif isinstance(obj, np.ndarray):
            _refuse_over(self._limit, obj.nbytes)
            if obj.flags.writeable and not _owns_memory(obj):
                raise NotPortable("it holds an array over memory that others may write to")
        elif isinstance(obj, (SharedMemory, ShareableList)):
            raise NotPortable("it holds shared memory")
        return NotImplemented


class _Limited(io.BytesIO):
    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit

    def write(self, data: Any) -> int:
        _refuse_over(self._limit, self.tell() + memoryview(data).nbytes)
        return super().write(data)


def _refuse_over(limit: int, size: int) -> None:
    if size > limit:
        raise NotPortable(f"it has more than {limit / (1 << 20):g} MiB")


def _owns_memory(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap):
            return False
        array = array.base
    return array is None or isinstance(array, (bytes, bytearray))
