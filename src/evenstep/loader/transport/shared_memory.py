"""Objects handed from one process to another through recycled shared memory.

A writer owns slabs of anonymous memory and copies an object's buffers into a free one. A reader
maps a slab the first time it sees it and rebuilds the object in place. When the last tensor that
looks into a slab is gone, the reader marks the slab free, and the writer uses it again. So bytes
are copied once, and after a short start no memory is allocated at all: fresh shared memory costs
twenty times as much to fill as memory that has been touched before. What is made in a lent slab in
the first place is not copied at all.

Slabs have no name in the file system. However the processes end, the kernel takes the memory back,
and a small /dev/shm, as containers have, is no limit. A slab's memory is reserved when it is made,
so that running out of memory is an error there and not the death of whoever fills it. Where
anonymous memory is not to be had (other systems than Linux), buffers travel inside the message.

A Ctrl-C raises in whatever Python code runs at that moment, and what a finalizer raises is lost. So
nothing that happens each step has one: memory is given back without a line of Python.
"""

from __future__ import annotations

import errno
import functools
import io
import mmap
import operator
import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evenstep.errors import LoaderDiedError
from evenstep.loader.transport import codec

__all__ = ["PackedObject", "Reader", "Writer"]

_ALIGN = 64  # of every buffer in a slab; also the room for the slab's header
_GROWTH = 1.125  # spare room of a new slab, so that slightly larger objects still fit
_PAGE = mmap.PAGESIZE
_READ, _LENT = 0, 1  # bytes of a slab's header: in use by a reader; by a borrower in this process
_FREE, _BUSY = 0, 1  # their values

Bytes = npt.NDArray[np.uint8]


class SlabFile:
    """The memory of a slab. It has a path as long as its writer lives, so it is opened where a
    message that names it arrives, and not when the message's turn comes: the writer, a worker with
    nothing left to do, may have ended by then."""

    def __init__(self, path: str, *, opened: bool = False) -> None:
        self._path = path
        self._file = self._open() if opened else None

    def _open(self) -> io.FileIO:
        try:
            return io.FileIO(self._path, "r+")
        except FileNotFoundError as error:
            raise ProcessLookupError(f"a worker process died: {self._path} is gone") from error
        except OSError as error:
            raise _explain(error, "to open a slab that another process has filled") from error

    def __reduce__(self) -> Any:
        return functools.partial(SlabFile, opened=True), (self._path,)

    def map(self) -> Bytes:
        with self._file or self._open() as file:
            size = os.fstat(file.fileno()).st_size
            try:
                return _map(file.fileno(), size)
            except (OSError, RuntimeError) as error:
                raise _explain(error, f"to map a slab of {size:,} bytes") from error

    def close(self) -> None:
        """It will not be mapped."""
        if self._file is not None:
            self._file.close()


class _Lease(weakref.ref[Bytes]):
    """Gives a slab back when a view of it is gone. Must itself live until then."""

    __slots__ = ("free",)

    def __new__(cls, view: Bytes, memory: Bytes, use: int) -> _Lease:
        # The callback is called with the lease: it calls ``lease.free(use, _FREE)``.
        return super().__new__(cls, view, operator.methodcaller("free", use, _FREE))

    def __init__(self, view: Bytes, memory: Bytes, use: int) -> None:
        self.free = memory.__setitem__


_orphans: list[_Lease] = []
"""Leases that have outlived their reader."""

_holders: weakref.WeakSet[Reader | Writer] = weakref.WeakSet()
"""Readers and writers of this process."""


def _leave_to_the_parent() -> None:
    """A forked child has copies of all views, and its memory is that of the parent: what it lets go
    of is not its to give back."""
    leases = [*_orphans, *(lease for holder in _holders for lease in holder.leases.values())]
    for lease in leases:
        lease.free = _nothing


def _nothing(*_: object) -> None:
    pass


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)


@dataclass(frozen=True)
class PackedObject:
    """What travels between the processes in place of the object."""

    pickle: bytes
    writer: int
    """Process of the writer; its slabs are numbered by itself."""
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
        LoaderDiedError: there is no more shared memory. Nothing is lost by it: the same object can
            be packed once memory is there again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._slabs: dict[int, tuple[Bytes, int]] = {}  # number -> (memory, file descriptor)
        self._lent_ends: dict[int, int] = {}  # where what was lent last ends
        self.leases: dict[int, _Lease] = {}
        """The latest of each slab."""
        _holders.add(self)
        self._retired: list[int] = []
        self._next = 0

    def lend(self, size: int) -> memoryview:
        """`size` bytes of a slab to make something in, which `pack` then need not copy. They are
        the caller's until nothing looks into them any more."""
        if not hasattr(os, "memfd_create"):
            return memoryview(bytearray(size))
        with self._lock:
            # The rest of the object should find room behind them.
            number = self._acquire(_ALIGN + int(_GROWTH * size), _LENT)
            memory, _ = self._slabs[number]
        lease = memory[:]
        self.leases[number] = _Lease(lease, memory, _LENT)
        self._lent_ends[number] = _ALIGN + size
        return memoryview(lease)[_ALIGN : _ALIGN + size]  # type: ignore[arg-type]

    def pack(self, obj: Any) -> PackedObject:
        data, buffers = codec.dumps(obj)
        pid = os.getpid()
        if not buffers or not hasattr(os, "memfd_create"):
            return PackedObject(data, pid, -1, inline=tuple(bytearray(b) for b in buffers))
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        with self._lock:
            number, starts, in_place = self._lay_out(arrays)
            memory, fd = self._slabs[number]
            retired, self._retired = tuple(self._retired), []
        spans = tuple((start, start + len(array)) for start, array in zip(starts, arrays))
        for position, (start, end) in enumerate(spans):
            if position not in in_place:
                memory[start:end] = arrays[position]
        file = SlabFile(f"/proc/{pid}/fd/{fd}")
        return PackedObject(data, pid, number, file, spans, retired=retired)

    def _lay_out(self, arrays: Sequence[Bytes]) -> tuple[int, list[int], set[int]]:
        """A slab, marked as a reader's, where each array starts in it, and which are there now."""
        for number, (memory, _) in self._slabs.items():
            # What a reader has been given before must be copied: it frees the slab when it likes.
            if memory[_LENT] == _BUSY and memory[_READ] == _FREE:
                starts = [array.ctypes.data - memory.ctypes.data for array in arrays]
                in_place = {i for i, start in enumerate(starts) if 0 <= start < len(memory)}
                # Behind all that was lent: the borrower may keep a part that is not packed.
                end = self._lent_ends[number]
                if in_place and _append(arrays, starts, in_place, end) <= len(memory):
                    memory[_READ] = _BUSY
                    return number, starts, in_place
        starts = [0] * len(arrays)
        size = _append(arrays, starts, set(), _ALIGN)
        return self._acquire(size, _READ), starts, set()

    def _acquire(self, size: int, use: int) -> int:
        """A free slab of at least `size` bytes, marked busy: the smallest that is large enough,
        else a new one in place of the largest that is too small."""
        free = [
            (len(memory), number)
            for number, (memory, _) in self._slabs.items()
            if memory[_READ] == _FREE and memory[_LENT] == _FREE
        ]
        fitting = [entry for entry in free if entry[0] >= size]
        if fitting:
            number = min(fitting)[1]
        else:
            if free:
                self._retire(max(free)[1])
            number, self._next = self._next, self._next + 1
            try:
                self._slabs[number] = _allocate(size)
            except (OSError, RuntimeError) as error:
                held = sum(len(memory) for memory, _ in self._slabs.values())
                raise _explain(
                    error,
                    f"for {size:,} bytes beside the {held:,} bytes in {len(self._slabs)} slabs "
                    "that it holds",
                ) from error
        self._slabs[number][0][use] = _BUSY
        return number

    def _retire(self, number: int) -> None:
        self.leases.pop(number, None)
        self._lent_ends.pop(number, None)
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
        self.leases: dict[tuple[int, int], _Lease] = {}
        """The latest of each slab."""
        _holders.add(self)

    def __del__(self) -> None:
        alive = [lease for lease in (*_orphans, *self.leases.values()) if lease() is not None]
        _orphans[:] = alive

    def unpack(self, packed: PackedObject) -> Any:
        for number in packed.retired:
            self._slabs.pop((packed.writer, number), None)
            self.leases.pop((packed.writer, number), None)
        if packed.slab < 0:
            return codec.loads(packed.pickle, packed.inline)
        key = (packed.writer, packed.slab)
        memory = self._slabs.get(key)
        assert packed.file is not None
        if memory is None:
            memory = self._slabs[key] = packed.file.map()
        else:
            packed.file.close()
        # Every buffer of the object looks through this one view, so its end is theirs.
        lease = memory[:]
        self.leases[key] = _Lease(lease, memory, _READ)
        view = memoryview(lease)  # type: ignore[arg-type]
        return codec.loads(packed.pickle, [view[start:end] for start, end in packed.spans])


def _append(arrays: Sequence[Bytes], starts: list[int], placed: set[int], end: int) -> int:
    """Fills in the starts of the arrays that are not placed, one after the other from `end` on, and
    gives the end of the last."""
    for position, array in enumerate(arrays):
        if position not in placed:
            starts[position] = end + -end % _ALIGN
            end = starts[position] + len(array)
    return end


def _allocate(size: int) -> tuple[Bytes, int]:
    room = int(size * _GROWTH)
    room += -room % _PAGE
    fd = os.memfd_create("evenstep")
    try:
        # Without it the pages would be taken as they are filled, and to run out then is a SIGBUS.
        os.posix_fallocate(fd, 0, room)
        return _map(fd, room), fd
    except BaseException:
        os.close(fd)
        raise


def _map(fd: int, size: int) -> Bytes:
    # Python's own mmap keeps a second descriptor for as long as it lives, and there are as many
    # slabs as a job may have open files before long.
    path = f"/proc/self/fd/{fd}"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8).numpy()


def _explain(error: OSError | RuntimeError, asked: str) -> LoaderDiedError:
    """What was asked for and what to do about it, for an `error` that says neither."""
    why = (isinstance(error, OSError) and error.strerror) or str(error)
    begin = f"shared memory ran out: process {os.getpid()} asked {asked}"
    if os.strerror(errno.EMFILE) in why:
        import resource  # not every system has it

        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return LoaderDiedError(
            f"{begin}, and each slab is an open file, of which {limit:,} are allowed; raise that "
            "(ulimit -n) or chunk_size, or lower buffer_size"
        )
    return LoaderDiedError(
        f"{begin} ({why}); lower buffer_size, prefetch or num_workers, or give the job more memory"
    )
