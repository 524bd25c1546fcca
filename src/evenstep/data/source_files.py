"""Files of a source: found by fsspec, sorted, and identified by name and size. Reading one is in
`storage_file`."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, TypeVar

from evenstep.data.file_listing import files_at
from evenstep.data.source import Source
from evenstep.data.storage_file import StorageFile, version_of
from evenstep.data.storage_retry import retried
from evenstep.errors import ConfigurationError, EvenstepError, StorageError, described

Item = TypeVar("Item")
Result = TypeVar("Result")
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
    size: int
    """Bytes."""
    system: Any
    """The fsspec file system."""
    patience: float = 0.0
    """Seconds for which reading it is tried again."""
    version: Mapping[str, str] = field(default_factory=dict)
    """What the storage says of its version, if anything."""

    @property
    def local(self) -> bool:
        return _is_local(self.system)

    def open(self) -> io.BufferedReader:
        """Opens it for reading bytes.

        Raises:
            StorageError: it cannot be opened, or has changed.
        """
        return io.BufferedReader(StorageFile(self), _BUFFER)


def list_files(source: Source) -> list[SourceFile]:
    """All files, each once, in order of their paths.

    Raises:
        ConfigurationError: a path or glob without a file.
        StorageError: its storage does not answer.
        ImportError: fsspec, or the package that it needs for a kind of URL, is not installed.
    """
    fsspec = optional_package(source, "fsspec", "core")
    found: dict[str, tuple[Mapping[str, Any], Any]] = {}
    for given in source.paths or []:
        try:
            system, path = fsspec.core.url_to_fs(given, **source.storage_options)
            list_given = partial(files_at, system, path)
            local = _is_local(system)
            listed = retried(given, list_given, patience=source.patience, local=local)
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
        for name, info in listed.items():
            found[name] = (info, system)
    paths = sorted(found)
    common = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return [
        SourceFile(
            path,
            os.path.relpath(path, common) if common else path,
            int(info["size"]),
            system,
            source.patience,
            version_of(info),
        )
        for path, (info, system) in ((path, found[path]) for path in paths)
    ]


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
    try:
        for submodule in submodules:
            import_module(f"{name}.{submodule}")
        return import_module(name)
    except ImportError as error:
        raise ImportError(
            f"source {source.name!r} needs {name}: pip install 'evenstep[sources]'"
        ) from error


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
