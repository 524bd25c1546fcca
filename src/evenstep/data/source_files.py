"""Files of a source: found by fsspec, sorted, and identified by name and size."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from evenstep.data.source import Source
from evenstep.errors import ConfigurationError, described

Item = TypeVar("Item")
Result = TypeVar("Result")
_THREADS = 16  # an object store is mostly waited for


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

    @property
    def local(self) -> bool:
        protocol = self.system.protocol
        return "file" in ([protocol] if isinstance(protocol, str) else protocol)

    def open(self) -> Any:
        """Opens it for reading bytes."""
        return open(self.path, "rb") if self.local else self.system.open(self.path, "rb")


def list_files(source: Source) -> list[SourceFile]:
    """All files, each once, in order of their paths.

    Raises:
        ConfigurationError: a path or glob without a file.
        ImportError: fsspec, or the package that it needs for a kind of URL, is not installed.
    """
    fsspec = optional_package(source, "fsspec", "core")
    found: dict[str, tuple[int, Any]] = {}
    for given in source.paths or []:
        try:
            system, path = fsspec.core.url_to_fs(given, **source.storage_options)
            listed = _listed(system, path)
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
            raise ConfigurationError(
                f"source {source.name!r}: {given} cannot be found by fsspec: "
                f"{described(error)}; check the path or URL"
            ) from error
        if not listed:
            raise ConfigurationError(
                f"source {source.name!r}: there is no file {given}; check the path, and that this "
                "machine sees it"
            )
        for name, info in listed.items():
            found[name] = (int(info["size"]), system)
    paths = sorted(found)
    common = os.path.commonpath([os.path.dirname(path) for path in paths]) if paths else ""
    return [
        SourceFile(path, os.path.relpath(path, common) if common else path, *found[path])
        for path in paths
    ]


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


def _listed(system: Any, path: str) -> dict[str, Any]:
    if any(letter in path for letter in "*?["):
        matched = system.glob(path, detail=True)
        return {name: info for name, info in matched.items() if info["type"] == "file"}
    try:
        info = system.info(path)
    except FileNotFoundError:
        return {}
    return {path: info} if info["type"] == "file" else {}
