"""A file system of fsspec in memory that crashes, tears what it writes, or lets others go first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Crash(KeyboardInterrupt):
    """The process ends here. Nothing catches what Ctrl-C raises."""


class FaultyStorage(MemoryFileSystem):
    """``faulty://``: counts operations, and at one of them does what it is told."""

    protocol = "faulty"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs: list[str] = [""]  # noqa: RUF012
    operations = 0
    fault: Callable[[FaultyStorage, str, bytes], None] | None = None
    at = -1

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("faulty://").strip("/")

    @classmethod
    def clear(cls) -> None:
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.operations, cls.fault, cls.at = 0, None, -1

    @classmethod
    def strike(cls, at: int, fault: Callable[[FaultyStorage, str, bytes], None]) -> None:
        cls.operations, cls.fault, cls.at = 0, fault, at

    def _count(self, path: str, value: bytes = b"") -> None:
        number, cls = self.operations, FaultyStorage
        cls.operations += 1
        if number == self.at and cls.fault is not None:
            cls.fault(self, path, value)

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._count(path, value)
        super().pipe_file(path, value, **options)

    def cat_file(self, path: str, *args: Any, **options: Any) -> Any:
        self._count(path)
        return super().cat_file(path, *args, **options)

    def ls(self, path: str, *args: Any, **options: Any) -> Any:
        self._count(path)
        return super().ls(path, *args, **options)

    def rm_file(self, path: str) -> None:
        self._count(path)
        self.store.pop(self._strip_protocol(path), None)


fsspec.register_implementation("faulty", FaultyStorage, clobber=True)


def crash_before(storage: FaultyStorage, path: str, value: bytes) -> None:
    raise Crash


def torn(storage: FaultyStorage, path: str, value: bytes) -> None:
    if value:
        MemoryFileSystem.pipe_file(storage, path, value[: len(value) // 2])
    raise Crash


def crash_after(storage: FaultyStorage, path: str, value: bytes) -> None:
    if value:
        MemoryFileSystem.pipe_file(storage, path, value)
    raise Crash
