"""Objects handed from one process to another through recycled shared memory.

A writer owns slabs of anonymous memory and copies an object's buffers into a free one. A reader
maps a slab the first time it sees it and rebuilds the object in place. When the last tensor that
looks into a slab is gone, the reader marks the slab free, and the writer uses it again. So bytes
are copied once, and after a short start no memory is allocated at all: fresh shared memory costs
twenty times as much to fill as memory that has been touched before.

Slabs have no name in the file system. However the processes end, the kernel takes the memory back,
and a small /dev/shm, as in containers, is not a limit. A slab's memory is reserved when it is made,
so that running out of memory is an error there and not the death of the process that fills it.
Where there is no anonymous memory (on systems other than Linux), buffers travel inside the message.

A Ctrl-C raises in whatever Python code runs at that moment, and an exception in a finalizer is
lost. So nothing that happens each step has a finalizer: slabs are freed without a line of Python.

Samples and batches become a small pickle and a list of buffers, and come back without copying.
Tensors and arrays leave the pickle as buffers (pickle protocol 5), so their bytes are copied once,
into shared memory, and are used there in place. Anything that is not a plain CPU tensor is pickled
the ordinary way, so every picklable sample works.
"""

from __future__ import annotations

import io
import operator
import os
import pickle
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from evenstep.loader.transport.slab_file import (
    Bytes,
    SlabFile,
    allocate,
    available,
    out_of_memory_error,
)


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


def to_buffers(obj: Any) -> tuple[bytes, list[memoryview]]:
    """The pickle of `obj`, and the raw bytes of its tensors and arrays in order."""
    buffers: list[pickle.PickleBuffer] = []
    stream = io.BytesIO()
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(obj)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def from_buffers(data: bytes, buffers: Sequence[Any]) -> Any:
    """Inverse of `dumps`. The object's tensors and arrays use `buffers`, which must be writable,
    in place and keep them alive."""
    return pickle.loads(data, buffers=buffers)


_ALIGN = 64  # of every buffer in a slab; also the room for the slab's header
_FREE, _BUSY = 0, 1  # values of its first byte: whether a reader uses it


class _Lease(weakref.ref[Bytes]):
    """Frees a slab when a view of it is gone. Must itself live until then."""

    __slots__ = ("free",)

    def __new__(cls, view: Bytes, memory: Bytes) -> _Lease:
        # The callback is called with the lease: it calls ``lease.free(0, _FREE)``.
        return super().__new__(cls, view, operator.methodcaller("free", 0, _FREE))

    def __init__(self, view: Bytes, memory: Bytes) -> None:
        self.free = memory.__setitem__


_orphans: list[_Lease] = []
"""Leases that have outlived their reader."""

_readers: weakref.WeakSet[Reader] = weakref.WeakSet()
"""Of this process."""


def _leave_to_the_parent() -> None:
    """Disarms the leases of a forked child. It has copies of all views of the parent's memory, and
    must not free that when its copies are gone."""
    leases = [*_orphans, *(lease for reader in _readers for lease in reader.leases.values())]
    for lease in leases:
        lease.free = _nothing


def _nothing(*_: object) -> None:
    pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


@dataclass(frozen=True)
class PackedObject:
    """The message that travels between processes in place of an object."""

    pickle: bytes
    writer: int
    """Process id of the writer, which numbers its own slabs."""
    slab: int
    """Number of the slab, or -1 when `inline` holds the buffers."""
    file: SlabFile | None = None
    """Where to find the slab."""
    spans: tuple[tuple[int, int], ...] = ()
    """(start, end) of each buffer in the slab."""
    inline: tuple[bytearray, ...] = ()
    retired: tuple[int, ...] = ()
    """Slabs that will not be used again."""


class Writer:
    """Packs objects. Thread-safe.

    Raises:
        LoaderDiedError: there is no more shared memory. Nothing is lost: the same object can be
            packed once there is memory again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inline = not available()
        self._slabs: dict[int, tuple[Bytes, int]] = {}  # number -> (memory, file descriptor)
        self._retired: list[int] = []
        self._next = 0

    def pack(self, obj: Any) -> PackedObject:
        data, buffers = to_buffers(obj)
        pid = os.getpid()
        if not buffers or self._inline:
            return PackedObject(data, pid, -1, inline=tuple(bytearray(b) for b in buffers))
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        with self._lock:
            starts, size = _laid_out(arrays)
            number = self._acquire(size)
            memory, fd = self._slabs[number]
            retired, self._retired = tuple(self._retired), []
        spans = tuple((start, start + len(array)) for start, array in zip(starts, arrays))
        for array, (start, end) in zip(arrays, spans):
            memory[start:end] = array
        file = SlabFile(pid, fd)
        return PackedObject(data, pid, number, file, spans, retired=retired)

    def _acquire(self, size: int) -> int:
        """A free slab of at least `size` bytes, marked busy: the smallest that is large enough,
        else a new one in place of the largest that is too small."""
        free = [
            (len(memory), number)
            for number, (memory, _) in self._slabs.items()
            if memory[0] == _FREE
        ]
        fitting = [entry for entry in free if entry[0] >= size]
        if fitting:
            number = min(fitting)[1]
        else:
            if free:
                self._retire(max(free)[1])
            number, self._next = self._next, self._next + 1
            try:
                self._slabs[number] = allocate(size)
            except (OSError, RuntimeError) as error:
                held = sum(len(memory) for memory, _ in self._slabs.values())
                raise out_of_memory_error(
                    error,
                    f"for {size:,} bytes beside the {held:,} bytes in {len(self._slabs)} slabs "
                    "that it holds",
                ) from error
        self._slabs[number][0][0] = _BUSY
        return number

    def _retire(self, number: int) -> None:
        os.close(self._slabs.pop(number)[1])
        self._retired.append(number)

    def close(self) -> None:
        """Closes all slabs; those that a reader has mapped stay valid there."""
        with self._lock:
            for number in list(self._slabs):
                self._retire(number)

    def __del__(self) -> None:
        self.close()


class Reader:
    """Unpacks objects of any number of writers, at most one in each process."""

    def __init__(self, *, copied: int = 0) -> None:
        """
        Args:
            copied: bytes of a buffer up to which it is copied: who keeps it, keeps no slab.
        """
        self._copied = copied
        self._slabs: dict[tuple[int, int], Bytes] = {}
        self.leases: dict[tuple[int, int], _Lease] = {}
        """The latest of each slab."""
        _readers.add(self)

    def __del__(self) -> None:
        alive = [lease for lease in (*_orphans, *self.leases.values()) if lease() is not None]
        _orphans[:] = alive

    def unpack(self, packed: PackedObject) -> Any:
        for number in packed.retired:
            self._slabs.pop((packed.writer, number), None)
            self.leases.pop((packed.writer, number), None)
        if packed.slab < 0:
            return from_buffers(packed.pickle, packed.inline)
        key = (packed.writer, packed.slab)
        memory = self._slabs.get(key)
        assert packed.file is not None
        if memory is None:
            memory = self._slabs[key] = packed.file.map()
        else:
            packed.file.close()
        # Every buffer of the object that is not copied is a part of this one view, which lives as
        # long as any of them.
        lease = memory[:]
        self.leases[key] = _Lease(lease, memory)
        view = memoryview(lease)  # type: ignore[arg-type]
        parts = [view[start:end] for start, end in packed.spans]
        own = [bytearray(p) if p.nbytes <= self._copied else p for p in parts]
        return from_buffers(packed.pickle, own)


def _laid_out(arrays: Sequence[Bytes]) -> tuple[list[int], int]:
    """Where each array starts in a slab, and the end of the last."""
    starts, end = [], _ALIGN
    for array in arrays:
        starts.append(end + -end % _ALIGN)
        end = starts[-1] + len(array)
    return starts, end
