"""`StorageFile`: a file that is read as it was when its source was opened, or not at all.

A read that fails, or ends before the file does, is tried again from the same byte. Whenever the
file is opened, its size and the version that the storage gives it are compared.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from evenstep.data.storage_retry import retried
from evenstep.errors import EvenstepError, StorageError, described

if TYPE_CHECKING:
    from evenstep.data.source_files import SourceFile

_VERSIONS = ("ETag", "etag", "md5Hash", "generation", "checksum", "blob_id")
"""What storages call the version of a file's content."""


def version_of(info: Mapping[str, Any]) -> dict[str, str]:
    """What a storage says of a file's version, if anything."""
    return {name: str(info[name]) for name in _VERSIONS if info.get(name)}


class StorageFile(io.RawIOBase):
    """See the module docstring. Without a buffer; `SourceFile.open` puts one before it."""

    def __init__(self, file: SourceFile) -> None:
        """
        Raises:
            StorageError: it cannot be opened, or has changed.
        """
        self._file = file
        self._opened: Any = None
        self._at = 0
        self._retried(self._open)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._file.size)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._file.size - self._at)
        if wanted <= 0:
            return 0
        content = self._retried(lambda: self._read(wanted))
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)

    def close(self) -> None:
        self._let_go()
        super().close()

    def _retried(self, attempt: Callable[[], Any]) -> Any:
        file = self._file
        try:
            return retried(file.path, attempt, patience=file.patience, local=file.local)
        except EvenstepError:
            raise
        except Exception as error:  # file systems raise their own types
            raise StorageError(
                f"{file.path} cannot be read: {described(error)}; this does not pass by itself, so "
                "it is not tried again: put right what it names, and start again from the last "
                "saved state"
            ) from error

    def _read(self, wanted: int) -> bytes:
        """Some bytes, at least one."""
        try:
            self._open()
            self._opened.seek(self._at)
            content: bytes = self._opened.read(wanted)
            if not content:
                raise ConnectionError(
                    f"it ended at byte {self._at:,} of {self._file.size:,}: cut off on its way"
                )
            return content
        except BaseException:
            self._let_go()
            if not self._file.local:
                self._file.system.invalidate_cache(self._file.path)
            raise

    def _open(self) -> None:
        if self._opened is not None:
            return
        file = self._file
        if file.local:
            self._opened = open(file.path, "rb", buffering=0)  # noqa: SIM115  see _let_go
            self._check({"size": os.fstat(self._opened.fileno()).st_size})
        else:
            self._opened = file.system.open(file.path, "rb")
            self._check(getattr(self._opened, "details", None) or file.system.info(file.path))

    def _check(self, info: Mapping[str, Any]) -> None:
        """Compares the file with what it was when its source was opened."""
        file, now = self._file, version_of(info)
        was: dict[str, Any] = {"size": file.size, **file.version}
        for name, value in {"size": int(info["size"]), **now}.items():
            if was.get(name, value) != value:
                self._let_go()
                raise StorageError(
                    f"{file.path} has changed since it was opened: its {name} was {was[name]} and "
                    f"is {value}; restore it, and start again from the last saved state"
                )

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):  # of a connection that is lost
                opened.close()
