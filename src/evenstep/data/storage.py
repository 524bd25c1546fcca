"""Reading from storage that may fail for a while.

`retried` repeats what may pass by itself, with growing pauses, until a source's patience is over:
timeouts, lost connections, overloaded servers, a stale handle of NFS. What will not pass, such as a
missing file or permission, is an error at once.

`StorageFile` reads a file as it was when its source was opened, or not at all. A read that fails,
or ends before the file does, is repeated from the same byte. After each read `check_unchanged`
compares the file's size and version with what they were: versions do not come back, so what was
read before is of the same one. A cache's blocks are of that version. How much is read ahead grows
while a file is read in order: file systems that read ahead at once would fetch megabytes for each
sample that is sought.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from evenstep.errors import EvenstepError, StorageError, described, without_queries

if TYPE_CHECKING:
    from evenstep.data.block_cache import CacheReader
    from evenstep.data.source_files import SourceFile

logger = logging.getLogger("evenstep")

Result = TypeVar("Result")

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 8.0  # seconds
_PAUSE_LOGGED = 1.0  # a shorter pause is not worth a line
_jitter = random.Random()  # of its own: transforms may use the module's
_STATUS_PASSES = {408, 425, 429}
"""Answers of HTTP that pass, among those that blame the request."""
_LASTING = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)
_ERRNO_PASSES = {
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.EREMOTEIO,
}


def passes(error: BaseException | None) -> bool:
    """Whether an error says that a system did not answer, whatever was asked of it."""
    return isinstance(error, (TimeoutError, ConnectionError)) or (
        isinstance(error, OSError) and error.errno in _ERRNO_PASSES
    )


def retried(
    what: str, attempt: Callable[[], Result], *, patience: float, local: bool = False
) -> Result:
    """What `attempt` returns, which is called until it raises nothing.

    Args:
        what: is read, for errors.
        patience: seconds for which it is tried again; 0 tries once.
        local: whether it is in this machine's own file systems, where few errors pass.

    Raises:
        StorageError: it fails still.
        Exception: what will not pass, as `attempt` raises it.
    """
    begin = time.monotonic()
    pause, attempts, logged = _FIRST_PAUSE, 1, False
    while True:
        try:
            return attempt()
        except EvenstepError:
            raise
        except Exception as error:  # file systems raise their own types
            if not (passes(error) if local else _may_pass(error)):
                raise
            spent = time.monotonic() - begin
            if spent >= patience:
                raise StorageError(
                    f"{what} cannot be read: tried {attempts} times in {spent:.1f} s, at last "
                    f"{described(error)}; restart once the storage answers, or raise "
                    f"patience={patience:g} of Source"
                ) from error
            if pause >= _PAUSE_LOGGED and not logged:
                logged = True
                logger.warning(
                    "%s could not be read %d times in %.1f s (%s); trying again for up to %g s",
                    without_queries(what),
                    *(attempts, spent, without_queries(described(error)), patience),
                )
        left = max(begin + patience - time.monotonic(), 0)
        time.sleep(min(pause * _jitter.uniform(0.5, 1.5), left))
        pause, attempts = min(2 * pause, _LONGEST_PAUSE), attempts + 1


def _may_pass(error: Exception) -> bool:
    """Whether an error of a remote file system may pass. Their libraries have hundreds of types:
    what is not known to last is taken to pass."""
    if passes(error):
        return True
    if isinstance(error, _LASTING) or "Credentials" in type(error).__name__:
        return False
    status = _status(error)
    return status is None or not 400 <= status < 500 or status in _STATUS_PASSES


def _status(error: Exception) -> int | None:
    """The answer of HTTP that an error is about."""
    found = [getattr(error, name, None) for name in ("status", "code", "status_code")]
    found.append(getattr(getattr(error, "response", None), "status_code", None))
    return next((each for each in found if isinstance(each, int)), None)


_CONTENTS = ("ETag", "etag", "md5Hash", "generation", "checksum", "blob_id", "sha")
"""What storages call that which changes with a file's content."""
_TIMES = ("mtime", "modificationTime", "modify", "last_write_time", "created")
"""What counts where a storage has none of these: not all that have both tell equal times each
time."""


def version_of(path: str, info: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is known of a file, all of which changes if its content does.

    Args:
        info: what a remote file system says of it; None asks this machine's.
    """
    if info is not None:
        contents = {name: str(info[name]) for name in _CONTENTS if info.get(name)}
        times = {name: _plain_time(info[name]) for name in _TIMES if info.get(name)}
        return {"size": int(info["size"]), **(contents or times)}
    known = os.stat(path)
    return {"size": known.st_size, "time of modification": known.st_mtime_ns}


def _plain_time(given: Any) -> Any:
    """A time as text or seconds. Some file systems list seconds and tell a datetime of one file."""
    return given.timestamp() if hasattr(given, "timestamp") else given


def changed(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """How a version of a file differs from an earlier one, in what is known of both; None if they
    are the same."""
    names = [name for name in now if was.get(name, now[name]) != now[name]]
    return f"its {names[0]} was {was[names[0]]} and is {now[names[0]]}" if names else None


def has_changed(path: str, since: str, difference: str) -> StorageError:
    """The error of a file that is not what it was."""
    return StorageError(
        f"{path} has changed since {since}: {difference}; restore its content, and restart from "
        "the last saved state"
    )


def check_unchanged(file: SourceFile) -> None:
    """
    Raises:
        StorageError: the file is another one than when its source was opened.
        Exception: of the file system, where it does not answer or has no such file.
    """
    info = None
    if not file.local:
        file.system.invalidate_cache(file.path)
        info = file.system.info(file.path)
    difference = changed(file.version, version_of(file.path, info))
    if difference is not None:
        raise has_changed(file.path, "it was opened", difference)


def attempted(file: SourceFile, attempt: Callable[[], Result]) -> Result:
    """As `retried`, of a file of a source.

    Raises:
        StorageError: it fails still, or will not pass.
    """
    try:
        return retried(file.path, attempt, patience=file.patience, local=file.local)
    except EvenstepError:
        raise
    except Exception as error:  # file systems raise their own types
        raise StorageError(
            f"{file.path} cannot be read: {described(error)}; this does not pass by itself, so "
            "it is not tried again: fix what it names, and restart from the last saved state"
        ) from error


_FIRST_AHEAD, _MOST_AHEAD = 1 << 16, 1 << 23
"""Bytes that are read ahead of another machine's file, once it is read in order."""


class StorageFile(io.RawIOBase):
    """See the module docstring. Without a buffer; `SourceFile.open` puts one before it."""

    def __init__(self, file: SourceFile) -> None:
        """
        Raises:
            StorageError: it cannot be opened. By way of a cache, it is opened once a block is
                missing.
        """
        self._file = file
        self._opened: Any = None
        self._at = 0
        self._ahead = self._next = 0  # bytes that are read ahead; where a read in order goes on
        self._held = 0, memoryview(b"")
        """What the cache gave last, and where in the file it begins."""
        if file.cache is None:
            attempted(file, self._open)

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
        if not self._next <= self._at <= self._next + self._ahead:
            self._ahead = 0
        cache = self._file.cache
        found = self._fetch(self._at, wanted) if cache is None else self._cached(cache, wanted)
        buffer[: len(found)] = found
        self._at = self._next = self._at + len(found)
        return len(found)

    def close(self) -> None:
        self._let_go()
        super().close()

    def _cached(self, cache: CacheReader, wanted: int) -> memoryview:
        """Some bytes, at least one."""
        begin, held = self._held
        if not begin <= self._at < begin + len(held):
            soon = max(wanted, self._ahead)
            self._held = cache.read(self._file, self._at, soon, self._fetch_all)
            begin, held = self._held
        return held[self._at - begin :][:wanted]

    def _fetch_all(self, begin: int, end: int) -> bytes:
        content = b""
        while begin + len(content) < end:
            at = begin + len(content)
            content += self._fetch(at, end - at)
        return content

    def _fetch(self, at: int, wanted: int) -> bytes:
        """Some bytes, at least one."""
        return attempted(self._file, partial(self._read, at, wanted))

    def _read(self, at: int, wanted: int) -> bytes:
        try:
            self._open()
            hits, misses = _cache_counts(self._opened)
            ahead = self._ahead if self._file.cache is None else 0
            cache: Any = getattr(self._opened, "cache", None)
            if getattr(cache, "name", "") in ("readahead", "bytes"):
                cache.blocksize = ahead  # what fsspec reads ahead
            self._opened.seek(at)
            content: bytes = self._opened.read(wanted)
            more_hits, more_misses = _cache_counts(self._opened)
            if more_hits == hits or more_misses != misses:  # not all was read ahead, and checked
                check_unchanged(self._file)
                self._ahead = min(max(2 * self._ahead, _FIRST_AHEAD), _MOST_AHEAD)
            if not content:
                raise ConnectionError(f"it was cut off at byte {at:,} of {self._file.size:,}")
            return content
        except BaseException:
            self._let_go()
            if not self._file.local:
                self._file.system.invalidate_cache(self._file.path)
            raise

    def _open(self) -> None:
        file = self._file
        if self._opened is None and file.local:
            self._opened = open(file.path, "rb", buffering=0)  # noqa: SIM115  see _let_go
        elif self._opened is None:
            self._opened = file.system.open(file.path, "rb")

    def _let_go(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            with suppress(Exception):  # of a connection that is lost
                opened.close()


def _cache_counts(opened: Any) -> tuple[int, int]:
    """How often what was read of an fsspec file had been read ahead, and had not; 0 if unknown."""
    cache = getattr(opened, "cache", None)
    return getattr(cache, "hit_count", 0), getattr(cache, "miss_count", 0)
