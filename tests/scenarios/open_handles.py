"""Datasets that open something in their first ``__getitem__``, as many libraries ask for: a handle
that two processes share gives other samples' data, an error, or waits for ever."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

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


KINDS = {kind.__name__.lower(): kind for kind in (Descriptor, Unmarked)}
