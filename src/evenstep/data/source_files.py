"""Files of a source: listed, identified by name, size and content, and opened.

`content_digest` is a cheap digest of the files' content, of the same few blocks of each file. Two
corpora with different content almost always differ in some of them: text that was tokenized,
shuffled or rewritten differs throughout. A change of a few bytes within a large file may go
unnoticed. Times and paths do not count, so a corpus may be copied.
"""

from __future__ import annotations

import copy
import hashlib
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import Any, TypeVar

import numpy as np

from evenstep.data.block_cache import CacheReader, cache_of_environment
from evenstep.data.source import Source
from evenstep.data.storage import (
    StorageFile,
    changed,
    has_changed,
    retried,
    version_of,
)
from evenstep.errors import (
    ConfigurationError,
    EvenstepError,
    StorageError,
    described,
    needing,
    without_queries,
)

Item = TypeVar("Item")
Result = TypeVar("Result")
_importing = threading.Lock()
"""Held while a package is imported: one whose modules import each other, as webdataset's do, can be
imported by one thread at a time only."""
_THREADS = 16  # an object store is mostly waited for
_BUFFER = 1 << 16  # bytes that are read at once, at least


@dataclass(frozen=True)
class SourceFile:
    """A file in any file system that fsspec knows."""

    path: str
    """In its file system."""
    name: str
    """Identifies it in fingerprints: the path below the folder that all files of the source have
    in common, so that a corpus may be moved."""
    version: Mapping[str, Any]
    """Its size, and what else the storage says of its version; see `version_of`."""
    system: Any
    """The fsspec file system."""
    patience: float = 0.0
    """Seconds for which reading it is tried again."""
    cache: CacheReader | None = None
    """By way of which it is read."""

    @property
    def size(self) -> int:
        """Bytes."""
        return int(self.version["size"])

    @property
    def local(self) -> bool:
        return _is_local(self.system)

    def open(self) -> io.BufferedReader:
        """Opens it for reading bytes.

        Raises:
            StorageError: it cannot be opened; or, from what is returned, it cannot be read, or has
                changed.
        """
        return io.BufferedReader(StorageFile(self), _BUFFER)


@dataclass(frozen=True)
class FirstOpening:
    """What the files of a source were when its job was started. Loaders that open them later, after
    a restart or on other machines, compare."""

    place: str
    """The folder that they lie in, and the machine if it has them."""
    versions: Mapping[str, Mapping[str, Any]]
    """By name of the file."""

    @classmethod
    def of(cls, files: Sequence[SourceFile]) -> FirstOpening:
        host = socket.gethostname() if any(file.local for file in files) else ""
        folder = files[0].path.removesuffix(files[0].name)
        return cls(f"{host}:{folder}", {file.name: file.version for file in files})

    def check(self, files: Sequence[SourceFile]) -> None:
        """
        Raises:
            StorageError: the files are others. In another place, which has copies of them, names
                and sizes are compared.
        """
        now = FirstOpening.of(files)
        for file in files:
            was = self.versions.get(file.name)
            if was is not None and now.place != self.place:
                was = {"size": was["size"]}
            difference = "it is new" if was is None else changed(was, file.version)
            if difference is not None:
                raise has_changed(file.path, "its job was started", difference)
        for name in self.versions.keys() - now.versions.keys():
            raise has_changed(f"{now.place}{name}", "its job was started", "it is gone")


def list_files(source: Source) -> list[SourceFile]:
    """All files, each once, in order of their paths.

    Raises:
        ConfigurationError: a path or glob without a file, or a cache that is not possible.
        StorageError: its storage does not answer, or files have changed since `Source.opened`.
        ImportError: fsspec, or the package that it needs for a kind of URL, is not installed.
    """
    fsspec = optional_package(source, "fsspec", "core")
    found: dict[str, SourceFile] = {}
    shared = source.cache or cache_of_environment()
    reader = None if shared is None else CacheReader(shared)
    for given in source.paths or []:
        try:
            system, path = fsspec.core.url_to_fs(given, **source.storage_options)
            list_given = partial(files_at, system, path)
            local = _is_local(system)
            listed = retried(given, list_given, patience=source.patience, local=local)
            for name, info in listed.items():
                version = version_of(name, None if local else info)
                # Where the size alone is known, a changed file may look the same.
                cache = None if local or len(version) < 2 else reader
                found[name] = SourceFile(name, name, version, system, source.patience, cache)
        except ImportError as error:
            raise ImportError(
                f"source {source.name!r} reads {given}, for which fsspec needs another package: "
                f"{error}"
            ) from error
        except ValueError as error:
            raise ConfigurationError(
                f"source {source.name!r}: {given} is not a URL that fsspec knows: {error}"
            ) from error
        except Exception as error:  # file systems raise their own types
            raise not_opened(source, f"{given} cannot be found by fsspec", error) from error
        if not listed:
            raise ConfigurationError(
                f"source {source.name!r}: there is no file {given}; check the path, and that this "
                "machine sees it"
            )
    names = {path: without_queries(path) for path in sorted(found)}
    common = os.path.commonpath(map(os.path.dirname, names.values())) if names else ""
    files = [
        replace(found[path], name=os.path.relpath(name, common) if common else name)
        for path, name in names.items()
    ]
    if source.opened is not None:
        source.opened.check(files)
    return files


def with_first_openings(sources: Sequence[Source]) -> tuple[Source, ...]:
    """The sources, each with what its files are now; several are listed at a time.

    Raises:
        ConfigurationError, StorageError, ImportError: see `list_files`.
    """

    def opened(source: Source) -> Source:
        if source.kind != "dataset":
            source = copy.copy(source)
            object.__setattr__(source, "opened", FirstOpening.of(list_files(source)))
        return source

    return tuple(in_threads(opened, sources))


def not_opened(source: Source, what: str, error: Exception) -> EvenstepError:
    """The error of a source that cannot be opened.

    Args:
        what: cannot be done with which file.
        error: was raised by it.
    """
    if isinstance(error, StorageError):
        return StorageError(f"source {source.name!r}: {error}")
    return ConfigurationError(f"source {source.name!r}: {what}: {described(error)}")


def optional_package(source: Source, name: str, *submodules: str) -> Any:
    """A package that reading a source needs, with these submodules imported.

    Raises:
        ImportError: it is not installed.
    """
    with needing(f"source {source.name!r} needs {name}", "sources"), _importing:
        for submodule in submodules:
            import_module(f"{name}.{submodule}")
        return import_module(name)


def in_threads(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """What a function gives for each item, several at a time; raises the error of the first item
    that has one."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _THREADS)) as pool:
        return list(pool.map(function, items))


def digest(parts: Sequence[object]) -> str:
    """A short hash of a long list."""
    text = "\n".join(map(repr, parts)).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _is_local(system: Any) -> bool:
    protocol = system.protocol
    return "file" in ([protocol] if isinstance(protocol, str) else protocol)


def files_at(system: Any, path: str) -> dict[str, Any]:
    """By path, what an fsspec file system knows of each file. A folder that cannot be listed is an
    error: by default a glob would leave its files out."""
    try:
        pattern = path.partition("?")[0] if path.startswith(("http://", "https://")) else path
        if any(letter in pattern for letter in "*?["):
            found = system.glob(path, detail=True, on_error="raise")
        else:
            found = {path: system.info(path)}
    except FileNotFoundError:
        return {}
    for name, info in found.items():
        if info["type"] not in ("file", "directory"):
            raise OSError(f"{name} is no file, or a link to one that is not there")
    return {name: info for name, info in found.items() if info["type"] == "file"}


_BLOCK = 4096
"""Bytes."""
_BLOCKS = 1024
"""Blocks of all files of a source, shared among them; 1 to 16 of each."""
_ENDS = 1 << 24
"""Bytes at the ends of all files, where Parquet has the sizes and statistics of all columns, shared
among them; 4 to 64 KiB of each."""
_AT_ONCE = 256
"""Files whose blocks are requested together from an object store."""

_Range = tuple[int, int]
"""First byte and end."""


def content_digest(source: Source, files: Sequence[SourceFile]) -> str:
    """16 hexadecimal digits.

    Raises:
        ConfigurationError, StorageError: a file cannot be read.
    """
    found = hashlib.sha256()
    count = int(np.clip(_BLOCKS // len(files), 1, 16))
    end = int(np.clip(_ENDS // len(files), _BLOCK, 1 << 16))
    for _, together in groupby(enumerate(files), lambda each: (each[0] // _AT_ONCE, each[1].local)):
        batch = [file for _, file in together]
        try:
            for content in _read(batch, [_ranges(file.size, count, end) for file in batch]):
                found.update(content)
        except Exception as error:  # file systems raise their own types
            what = f"{batch[0].path} or a file after it cannot be read"
            raise not_opened(source, what, error) from error
    return found.hexdigest()[:16]


def _ranges(size: int, count: int, end: int) -> list[_Range]:
    """What is read of a file: evenly spaced blocks and its end; all of a small file."""
    last = max(size - end, 0)
    if last <= count * _BLOCK:
        return [(0, size)]
    begins = np.linspace(0, last - _BLOCK, count).astype(int).tolist()
    return [*((begin, begin + _BLOCK) for begin in begins), (last, size)]


def _read(files: Sequence[SourceFile], ranges: Sequence[Sequence[_Range]]) -> Iterator[bytes]:
    """The ranges of each file, one after the other. Files are all local, or all not."""
    if files[0].local:
        for file, wanted in zip(files, ranges):
            with file.open() as opened:
                for begin, end in wanted:
                    opened.seek(begin)
                    yield opened.read(end - begin)
        return
    pairs = [(file, *each) for file, wanted in zip(files, ranges) for each in wanted]
    for system, of_system in groupby(pairs, lambda pair: pair[0].system):
        listed, begins, ends = zip(*of_system)
        paths = [file.path for file in listed]
        attempt = partial(_ranges_of, system, paths, list(begins), list(ends))
        yield from retried(paths[0], attempt, patience=listed[0].patience)


def _ranges_of(
    system: Any, paths: list[str], begins: list[int], ends: list[int]
) -> Sequence[bytes]:
    found: list[bytes] = system.cat_ranges(paths, begins, ends, on_error="raise")
    for path, content, begin, end in zip(paths, found, begins, ends):
        if len(content) < end - begin:
            raise ConnectionError(f"{path} ended at byte {begin + len(content):,} before {end:,}")
    return found
