"""Datasets that open something in their first ``__getitem__``, as many libraries ask for: a handle
that two processes share gives other samples' data, an error, or waits for ever."""

from __future__ import annotations

import mmap
import os
import socket
import socketserver
import sqlite3
import struct
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

RECORD = 512


class Handle(Dataset):  # type: ignore[type-arg]
    """Samples that say which was asked for, and what was read."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        self.size = size
        self.handle: Any = None
        self.opened_by: int | None = None
        self.write()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.handle is None:
            self.handle, self.opened_by = self.open(), os.getpid()
        if self.opened_by != os.getpid():
            raise RuntimeError("a handle that another process has opened")
        tokens = torch.ones(20 + index % 60, dtype=torch.int64)
        got = torch.tensor(self.read(index))
        return {"input_ids": tokens, "labels": tokens, "asked": torch.tensor(index), "got": got}

    def write(self) -> None:
        raise NotImplementedError

    def open(self) -> Any:
        raise NotImplementedError

    def read(self, index: int) -> int:
        raise NotImplementedError


class Descriptor(Handle):
    def write(self) -> None:
        records = b"".join(struct.pack("<q", i).ljust(RECORD) for i in range(self.size))
        (self.folder / "records").write_bytes(records)

    def open(self) -> int:
        return os.open(self.folder / "records", os.O_RDONLY)

    def read(self, index: int) -> int:
        os.lseek(self.handle, index * RECORD, os.SEEK_SET)
        return int(struct.unpack("<q", os.read(self.handle, RECORD)[:8])[0])

    def __getstate__(self) -> dict[str, Any]:
        if self.handle is not None:
            raise TypeError("a descriptor cannot be sent")
        return vars(self)


class Unmarked(Descriptor):
    """As most are: nothing says that the descriptor is another process's."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self.opened_by = os.getpid()
        return super().__getitem__(index)


class MemoryMap(Descriptor):
    def open(self) -> Any:
        with open(self.folder / "records", "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, index: int) -> int:
        self.handle.seek(index * RECORD)
        return int(struct.unpack("<q", self.handle.read(8))[0])


class Zip(Handle):
    def write(self) -> None:
        with zipfile.ZipFile(self.folder / "records.zip", "w") as archive:
            for index in range(self.size):
                archive.writestr(str(index), str(index).ljust(200))

    def open(self) -> Any:
        return zipfile.ZipFile(self.folder / "records.zip")

    def read(self, index: int) -> int:
        return int(self.handle.read(str(index)))


class Sqlite(Handle):
    def write(self) -> None:
        with sqlite3.connect(self.folder / "records.db") as base:
            base.execute("create table records (number integer primary key, value integer)")
            rows = ((index, index) for index in range(self.size))
            base.executemany("insert into records values (?, ?)", rows)

    def open(self) -> Any:
        return sqlite3.connect(self.folder / "records.db")

    def read(self, index: int) -> int:
        found = self.handle.execute("select value from records where number = ?", (index,))
        return int(found.fetchone()[0])


class Hdf5(Handle):
    def write(self) -> None:
        import h5py

        with h5py.File(self.folder / "records.h5", "w") as file:
            file.create_dataset("value", data=np.arange(self.size), chunks=(64,))

    def open(self) -> Any:
        import h5py

        return h5py.File(self.folder / "records.h5", "r")

    def read(self, index: int) -> int:
        return int(self.handle["value"][index])


class Lmdb(Handle):
    def write(self) -> None:
        import lmdb

        with (
            lmdb.open(str(self.folder / "records"), map_size=1 << 28) as base,
            base.begin(write=True) as writer,
        ):
            for index in range(self.size):
                writer.put(str(index).encode(), str(index).encode())

    def open(self) -> Any:
        import lmdb

        return lmdb.open(str(self.folder / "records"), readonly=True, lock=False)

    def read(self, index: int) -> int:
        with self.handle.begin() as reader:
            return int(reader.get(str(index).encode()))


class _Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line)


class Socket(Handle):
    """Asks a server of the test's."""

    def write(self) -> None:
        self.address = self.folder / "server"

    @staticmethod
    def serve(folder: Path) -> Any:
        server = socketserver.ThreadingUnixStreamServer(str(folder / "server"), _Echo)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def open(self) -> Any:
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(self.address))
        return line.makefile("rwb")

    def read(self, index: int) -> int:
        self.handle.write(b"%d\n" % index)
        self.handle.flush()
        return int(self.handle.readline())


class Drawing(Handle):
    """Holds a generator, which counts what it has yielded."""

    def write(self) -> None:
        pass

    def open(self) -> Iterator[int]:
        return (number for number in range(1 << 40))

    def read(self, index: int) -> int:
        next(self.handle)
        return index


class Locked(Handle):
    """Holds a lock for good, as a reader that has a file for itself."""

    def write(self) -> None:
        pass

    def open(self) -> threading.Lock:
        lock = threading.Lock()
        assert lock.acquire(timeout=10)
        return lock

    def read(self, index: int) -> int:
        return index


class Accelerator(Handle):
    """Holds a context that does not survive a fork, like CUDA's."""

    def write(self) -> None:
        pass

    def open(self) -> object:
        return object()

    def read(self, index: int) -> int:
        return index

    def __getstate__(self) -> dict[str, Any]:
        if self.handle is not None:
            raise RuntimeError("a context on an accelerator cannot be sent")
        return vars(self)


KINDS = {
    kind.__name__.lower(): kind
    for kind in (
        *(Descriptor, Unmarked, MemoryMap, Zip, Sqlite, Hdf5, Lmdb, Socket),
        *(Drawing, Locked, Accelerator),
    )
}
NEEDS = {"hdf5": "h5py", "lmdb": "lmdb"}
"""Packages that a kind is made of."""
