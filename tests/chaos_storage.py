"""A remote file system over local files that delays, fails, cuts off and dies, by a seed: ``chaos://``.

Importing this registers it, so a source whose transform is of this module can be read in any
process. Faults come with random operations; and `ControlledStorage.fail` makes all operations fail
for a while, in all processes that share its folder.
"""

from __future__ import annotations

import io
import json
import random
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

FAULTS = ("delay", "timeout", "reset", "busy", "short", "cut")


class BusyError(Exception):
    """As libraries of object stores have, of no type that is known."""

    status = 503


class ForbiddenError(Exception):
    status = 403


class ChaosFileSystem(AbstractFileSystem):
    protocol = "chaos"
    cachable = False

    def __init__(
        self, *, seed: int = 0, rate: float = 0.0, control: str | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self._random = random.Random(seed)
        self._rate, self._control = rate, control
        self._lock = threading.Lock()
        self.operations: list[str] = []

    def fault(self, operation: str) -> str | None:
        """What goes wrong with an operation; raises if it is an error."""
        with self._lock:
            self.operations.append(operation)
            drawn = self._random.choice(FAULTS) if self._random.random() < self._rate else None
        if self._control is not None:
            self._raise_ordered(operation)
        if drawn == "delay":
            time.sleep(0.002)
        if drawn == "timeout":
            raise TimeoutError(f"{operation} took too long")
        if drawn == "reset":
            raise ConnectionResetError(f"{operation}: connection reset by peer")
        if drawn == "busy":
            raise BusyError(f"{operation}: slow down")
        return drawn

    def _raise_ordered(self, operation: str) -> None:
        try:
            ordered = json.loads(Path(self._control or "").read_text())
        except (FileNotFoundError, ValueError):
            return
        if operation in ordered["operations"]:
            error = {"down": ConnectionError, "forbidden": ForbiddenError, "gone": OSError}
            raise error[ordered["how"]](f"{operation}: {ordered['how']}")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self.fault("info")
        return self._info(path)

    def _info(self, path: str) -> dict[str, Any]:
        local = Path(self._strip_protocol(path))
        found = local.stat()  # raises FileNotFoundError
        kind = "directory" if local.is_dir() else "file"
        tag = f"{found.st_mtime_ns}"
        return {"name": str(local), "size": found.st_size, "type": kind, "ETag": tag}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        self.fault("ls")
        local = Path(self._strip_protocol(path))
        if not local.is_dir():
            raise FileNotFoundError(path)
        found = [self._info(str(each)) for each in sorted(local.iterdir())]
        return found if detail else [each["name"] for each in found]

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.fault("open")
        return ChaosFile(self, path)


class ChaosFile(io.RawIOBase):
    def __init__(self, system: ChaosFileSystem, path: str) -> None:
        self._system = system
        self._file = open(path, "rb")  # noqa: SIM115
        self.details = system._info(path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        fault = self._system.fault("read")
        if fault == "cut":
            return b""
        return self._file.read(max(size // 3, 1) if fault == "short" else size)

    def close(self) -> None:
        self._file.close()
        super().close()


class ControlledStorage:
    """Makes operations fail in all processes, until it is told to stop."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control.json"

    def fail(self, how: str = "down", *operations: str) -> None:
        given = {"how": how, "operations": operations or ("info", "ls", "open", "read")}
        whole = self.path.with_suffix(".new")
        whole.write_text(json.dumps(given))
        whole.rename(self.path)

    def stop(self) -> None:
        self.path.unlink(missing_ok=True)


def tokens_of_far_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A sample whose first token identifies the stored row."""
    return {"input_ids": [row["id"], *range(1, row["length"])], "id": row["id"]}


fsspec.register_implementation("chaos", ChaosFileSystem, clobber=True)
