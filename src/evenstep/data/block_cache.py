"""A cache of remote files on a disk of each host: what one process has fetched, no other process of
the host fetches again.

Files are fetched and kept in blocks, each a file of the cache's folder:

    DIGEST-NUMBER.block    a block and its checksum; DIGEST is of the file's address and version
    DIGEST-NUMBER.part     locked by the process that fetches the block; others wait for it
    total                  how many bytes all of these have, or more; locked while blocks are
                           written or evicted

A file that changes has other blocks. Locks are those of `flock`, which end with their process, in
whatever it does. `total` grows before a part is written, and a part is renamed once it is whole: so
the files never exceed the limit, and a part that nobody has locked is of no use. A block whose
checksum is wrong is fetched again. Blocks may vanish at any time.

A disk that is full or fails is one warning, and files are read without the cache meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from evenstep.errors import ConfigurationError, described, without_queries
from evenstep.plan.value_checks import check_at_least, check_given

if TYPE_CHECKING:
    from evenstep.data.source_files import SourceFile

logger = logging.getLogger("evenstep")

FOLDER_VARIABLE, LIMIT_VARIABLE = "EVENSTEP_CACHE", "EVENSTEP_CACHE_BYTES"
_LIMIT = 64 << 30
_CHECKSUM = 4  # bytes
_FILE = 1 << 20
BLOCK = _FILE - _CHECKSUM
"""Bytes of a remote file that are fetched and kept together."""
_MOST = 8
"""Blocks that are fetched by one request, at most."""
_OURS = re.compile(r"[0-9a-f]{32}-\d+\.(block|part)")
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05
_PATIENCE = 60.0
"""Seconds for which another process is waited for, and after which a disk that failed is written
again."""
_warned: set[str] = set()
"""Folders that could not be written."""


@dataclass(frozen=True)
class BlockCache:
    """Where each host keeps what it has fetched of remote files, for all processes and later runs.

    Args:
        folder: on a disk of the host; it is created if it is missing.
        limit: bytes that the files in it have at most. What was used longest ago is evicted.

    Raises:
        ConfigurationError: the folder is none, or the limit has no room for a block.
    """

    folder: str | os.PathLike[str]
    limit: int = _LIMIT

    def __post_init__(self) -> None:
        check_given(limit=self.limit)
        check_at_least(_FILE, limit=self.limit)
        if os.path.exists(self.folder) and not os.path.isdir(self.folder):
            raise ConfigurationError(f"folder={str(self.folder)!r} is a file; name a folder")


def cache_of_environment() -> BlockCache | None:
    """The cache that EVENSTEP_CACHE names on this host, if it does.

    Raises:
        ConfigurationError: it is not possible.
    """
    folder, limit = os.environ.get(FOLDER_VARIABLE), os.environ.get(LIMIT_VARIABLE, f"{_LIMIT}")
    if not folder:
        return None
    if not limit.isdecimal():
        raise ConfigurationError(f"{LIMIT_VARIABLE}={limit} must be a number of bytes")
    return BlockCache(folder, int(limit))


@dataclass
class CacheCounts:
    """What a cache did for a reader."""

    hits: int = 0
    """Blocks that were there, or that another process fetched meanwhile."""
    misses: int = 0
    """Blocks that the reader fetched."""
    served_bytes: int = 0
    """Of the former."""
    fetched_bytes: int = 0
    """Of the latter."""
    evicted_bytes: int = 0
    """Removed by this reader, to make room."""


@dataclass(frozen=True)
class _Block:
    name: str
    begin: int
    size: int


class CacheReader:
    """A cache as one reader of a source uses it, in any of its threads."""

    def __init__(self, shared: BlockCache) -> None:
        self._folder, self._limit = os.fspath(shared.folder), shared.limit
        self._lock = threading.Lock()
        self._resting = 0.0
        """Until when nothing is written."""
        self.counts = CacheCounts()

    def read(
        self, file: SourceFile, at: int, wanted: int, fetch: Callable[[int, int], bytes]
    ) -> tuple[int, memoryview]:
        """Where a part of a file begins, and the part, which has the byte `at`.

        Args:
            wanted: bytes that are read next: if the first must be fetched, so are they.
            fetch: reads the bytes of the file from one to another.
        """
        blocks = _blocks(file, at, wanted)
        with ExitStack() as claims:
            kept: memoryview | None = None
            parts: list[int] = []
            try:
                kept, parts = self._kept_or_claimed(blocks, claims)
            except OSError as error:
                self._rest(error)
            if kept is not None:
                self._count(hits=1, served_bytes=len(kept))
                return blocks[0].begin, kept
            blocks = blocks[: len(parts) or None]
            begin, end = blocks[0].begin, blocks[-1].begin + blocks[-1].size
            content = memoryview(fetch(begin, end))
            self._count(misses=len(blocks), fetched_bytes=len(content))
            if parts:
                try:
                    self._store(blocks, parts, content)
                except OSError as error:
                    self._rest(error)
            return begin, content

    def _kept_or_claimed(
        self, blocks: Sequence[_Block], claims: ExitStack
    ) -> tuple[memoryview | None, list[int]]:
        """The first block, as it is kept; or parts that are locked for it and those after it; or
        nothing, if the reader is to do without.

        Raises:
            OSError: the folder cannot be written, or another process has locked the part for long.
        """
        kept = self._kept(blocks[0])
        if kept is not None or time.monotonic() < self._resting:
            return kept, []
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        parts: list[int] = []
        for _ in _attempts(self._path(blocks[0], "part")):
            part = self._claimed(blocks[0], claims)
            kept = self._kept(blocks[0])  # the last that had locked it may have written it
            if kept is not None:
                return kept, []
            if part is not None:
                parts.append(part)
                break
        for block in blocks[1:]:
            there = self._path(block)
            part = None if os.path.exists(there) else self._claimed(block, claims)
            if part is None or os.path.exists(there):
                break
            parts.append(part)
        return None, parts

    def _path(self, block: _Block, kind: str = "block") -> str:
        return os.path.join(self._folder, f"{block.name}.{kind}")

    def _kept(self, block: _Block) -> memoryview | None:
        """A block that is there, and whole."""
        path = self._path(block)
        try:
            with open(path, "rb", buffering=0) as file:
                stored = memoryview(file.read(block.size + _CHECKSUM + 1))
        except OSError:
            return None
        content = stored[: block.size]
        if stored[block.size :] != _checksum(block, content):
            return None
        with suppress(OSError):  # it was just evicted, or the folder cannot be written
            os.utime(path)
        return content

    def _claimed(self, block: _Block, claims: ExitStack) -> int | None:
        """The block's part, locked until `claims` ends; None if another one has locked it."""
        path = self._path(block, "part")
        part = _locked(path, os.O_CREAT)
        if part is not None:
            claims.callback(_release, part, path)
        return part

    def _store(self, blocks: Sequence[_Block], parts: Sequence[int], content: memoryview) -> None:
        """Keeps fetched blocks, as far as there is room."""
        with self._total() as total:
            for block, part in zip(blocks, parts):
                begin = block.begin - blocks[0].begin
                stored = content[begin : begin + block.size]
                size = block.size + _CHECKSUM
                before = _read_total(total)
                if before is None or before + size > self._limit:
                    before = self._evicted(size)
                if before + size > self._limit:
                    return
                os.pwrite(total, f"{_boot()} {before + size:020}\n".encode(), 0)
                with open(part, "wb", closefd=False) as file:
                    file.write(stored)
                    file.write(_checksum(block, stored))
                os.rename(self._path(block, "part"), self._path(block))

    @contextmanager
    def _total(self) -> Iterator[int]:
        """The file `total`, locked."""
        path = os.path.join(self._folder, "total")
        for _ in _attempts(path):
            total = _locked(path, os.O_CREAT)
            if total is not None:
                try:
                    yield total
                    fcntl.flock(total, fcntl.LOCK_UN)  # a forked process may have it open, too
                finally:
                    os.close(total)
                return

    def _evicted(self, size: int) -> int:
        """Makes room for so many bytes, and some more, as all files are looked through; returns how
        many bytes are left."""
        blocks, total = [], 0
        with os.scandir(self._folder) as listed:
            for each in listed:
                if _OURS.fullmatch(each.name) is None:
                    continue
                with suppress(FileNotFoundError):
                    if each.name.endswith(".part") and _is_left(each.path):
                        continue
                    found = each.stat()
                    total += found.st_size
                    if each.name.endswith(".block"):
                        blocks.append((found.st_mtime_ns, each.path, found.st_size))
        room = self._limit - max(size, self._limit // 16)
        for _, path, found_size in sorted(blocks):
            if total <= room:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= found_size
            self._count(evicted_bytes=found_size)
        return total

    def _rest(self, error: OSError) -> None:
        self._resting = time.monotonic() + _PATIENCE
        if self._folder not in _warned:
            _warned.add(self._folder)
            logger.warning(
                "the cache %s cannot be written, and files are read without it: %s",
                *(self._folder, described(error)),
            )

    def _count(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                setattr(self.counts, name, getattr(self.counts, name) + count)


def _blocks(file: SourceFile, at: int, wanted: int) -> list[_Block]:
    """Those that have the bytes from one on, a few at most."""
    options = file.system.storage_options
    place = [str(options.get(name)) for name in ("endpoint_url", "host", "port", "account_name")]
    known = (file.system.protocol, place, without_queries(file.path), dict(file.version), BLOCK)
    digest = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:32]
    first, end = at // BLOCK, -(-min(at + wanted, file.size) // BLOCK)
    return [
        _Block(f"{digest}-{number}", number * BLOCK, min(BLOCK, file.size - number * BLOCK))
        for number in range(first, min(end, first + _MOST))
    ]


def _checksum(block: _Block, content: memoryview) -> bytes:
    return zlib.crc32(content, zlib.crc32(block.name.encode())).to_bytes(_CHECKSUM, "big")


def _attempts(path: str) -> Iterator[None]:
    """Attempts at locking a file, with pauses in between.

    Raises:
        TimeoutError: another process has it for long.
    """
    end, pause = time.monotonic() + _PATIENCE, _FIRST_PAUSE
    yield
    while time.monotonic() < end:
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
        yield
    raise TimeoutError(f"another process has locked {path} for {_PATIENCE:g} s")


def _locked(path: str, flags: int = 0) -> int | None:
    """A file, opened and locked; None if another one has locked it, or it has another name by
    now."""
    descriptor = os.open(path, os.O_RDWR | flags, 0o600)
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path)):
            return descriptor
    os.close(descriptor)
    return None


def _release(part: int, path: str) -> None:
    """Removes a locked part, unless it has become a block."""
    with suppress(OSError):
        if os.path.samestat(os.fstat(part), os.stat(path)):
            os.unlink(path)
    os.close(part)


def _is_left(path: str) -> bool:
    """Whether a part was left behind by a process that died; then it is removed."""
    part = _locked(path)
    if part is not None:
        _release(part, path)
    return part is not None


def _read_total(total: int) -> int | None:
    """What the file says; None if it is damaged, or of before the system's last start: without
    power, the newest changes of a disk are lost in any order."""
    boot, _, size = os.pread(total, 100, 0).decode(errors="replace").partition(" ")
    return int(size) if boot == _boot() and re.fullmatch(r"\d{20}\n", size) else None


@cache
def _boot() -> str:
    """Changes with each start of the system."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
