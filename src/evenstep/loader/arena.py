"""Objects handed from one process to another through recycled shared memory.

A writer owns slabs of anonymous memory and copies an object's buffers into a free one. A reader
maps a slab the first time it sees it and rebuilds the object in place. When the last tensor that
looks into a slab is gone, the reader marks the slab free, and the writer uses it again. So bytes
are copied once, and after a short start no memory is allocated at all: fresh shared memory costs
twenty times as much to fill as memory that has been touched before.

Slabs have no name in the file system. However the processes end, the kernel takes the memory back,
and a small /dev/shm, as containers have, is no limit. Where anonymous memory is not to be had
(other systems than Linux), buffers travel inside the message.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.loader import codec

__all__ = ["Packed", "Reader", "Writer"]

_ALIGN = 64  # of every buffer in a slab; also the room for the slab's header
_GROWTH = 1.125  # spare room of a new slab, so that slightly larger objects still fit
_PAGE = mmap.PAGESIZE
_FREE, _BUSY = 0, 1  # values of a slab's first byte

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Packed:
    """What travels between the processes in place of the object."""

    pickle: bytes
    writer: int
    """Process of the writer; its slabs are numbered by itself."""
    slab: int
    """Number of the slab, or -1 when `inline` holds the buffers."""
    path: str
    """Where the reader can open the slab while the writer lives."""
    spans: tuple[tuple[int, int], ...] = ()
    """(start, end) of each buffer in the slab."""
    inline: tuple[bytearray, ...] = ()
    retired: tuple[int, ...] = ()
    """Slabs that will not be used again."""


class Writer:
    """Packs objects. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, tuple[Bytes, int]] = {}  # number -> (memory, file descriptor)
        self._retired: list[int] = []
        self._next = 0

    def pack(self, obj: Any) -> Packed:
        data, buffers = codec.dumps(obj)
        pid = os.getpid()
        spans = []
        end = _ALIGN
        for buffer in buffers:
            start, end = end, end + buffer.nbytes
            spans.append((start, end))
            end += -end % _ALIGN
        if not buffers or not hasattr(os, "memfd_create"):
            return Packed(data, pid, -1, "", inline=tuple(bytearray(b) for b in buffers))
        with self._lock:
            number, memory, fd = self._acquire(end)
            retired, self._retired = tuple(self._retired), []
        for (start, stop), buffer in zip(spans, buffers):
            memory[start:stop] = np.frombuffer(buffer, np.uint8)
        return Packed(data, pid, number, f"/proc/{pid}/fd/{fd}", tuple(spans), retired=retired)

    def _acquire(self, size: int) -> tuple[int, Bytes, int]:
        """A free slab of at least `size` bytes, marked busy: the smallest that is large enough,
        else a new one in place of the largest that is too small."""
        free = [(len(m), n) for n, (m, _) in self._slabs.items() if m[0] == _FREE]
        fitting = [entry for entry in free if entry[0] >= size]
        if fitting:
            number = min(fitting)[1]
        else:
            if free:
                self._retire(max(free)[1])
            number, self._next = self._next, self._next + 1
            self._slabs[number] = _allocate(size)
        memory, fd = self._slabs[number]
        memory[0] = _BUSY
        return number, memory, fd

    def _retire(self, number: int) -> None:
        os.close(self._slabs.pop(number)[1])
        self._retired.append(number)

    def close(self) -> None:
        """Gives all slabs back; what a reader has mapped stays valid there."""
        with self._lock:
            for number in list(self._slabs):
                self._retire(number)

    def __del__(self) -> None:
        self.close()


class Reader:
    """Unpacks objects of any number of writers, one to a process."""

    def __init__(self) -> None:
        self._slabs: dict[tuple[int, int], Bytes] = {}

    def unpack(self, packed: Packed) -> Any:
        for number in packed.retired:
            self._slabs.pop((packed.writer, number), None)
        if packed.slab < 0:
            return codec.loads(packed.pickle, packed.inline)
        key = (packed.writer, packed.slab)
        memory = self._slabs.get(key)
        if memory is None:
            memory = self._slabs[key] = _open(packed.path)
        # Every buffer of the object looks through this one view, so its end is theirs.
        lease = memory[:]
        weakref.finalize(lease, memory.__setitem__, 0, _FREE).atexit = False
        view = memoryview(lease)  # type: ignore[arg-type]
        return codec.loads(packed.pickle, [view[start:end] for start, end in packed.spans])


def _allocate(size: int) -> tuple[Bytes, int]:
    room = int(size * _GROWTH)
    room += -room % _PAGE
    fd = os.memfd_create("evenstep")
    try:
        # Reserves the pages now: running out of memory later would be a SIGBUS, not an exception.
        os.posix_fallocate(fd, 0, room)
        return np.frombuffer(mmap.mmap(fd, room), np.uint8), fd
    except BaseException:
        os.close(fd)
        raise


def _open(path: str) -> Bytes:
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        return np.frombuffer(mmap.mmap(fd, os.fstat(fd).st_size), np.uint8)
    finally:
        os.close(fd)
