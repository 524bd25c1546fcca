"""Files that are written whole or not at all, in a folder of this machine or under a URL.

Documents are JSON below a checksum. `Generation` says which of a run's planners may write. Each
planner that starts on a run announces itself with a higher number, and then notes what its
predecessors have written. After each write, a planner checks whether a later one has announced
itself. So if a planner was thought dead and was only slow, either its successor has noted what it
wrote, or it finds out before anyone relies on the write. This needs no lock and no clock, only a
store that lists what has been written. No two generations write the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError, SupersededError, described, needing

_PARTIAL = ".partial"


def url_folder(url: str | os.PathLike[str]) -> UrlFolder:
    """The folder at a path or URL.

    Raises:
        ConfigurationError: fsspec does not know the URL, or does not reach it.
        ImportError: fsspec, or the package that it needs for the URL, is not installed.
    """
    text = absolute(url)
    with needing(f"{text!r} needs fsspec", "sources"):
        import fsspec
    try:
        system, path = fsspec.core.url_to_fs(text)
    except ImportError as error:
        raise ImportError(f"{text!r} needs another package: {error}") from error
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{text!r} cannot be opened by fsspec: {error}") from error
    return UrlFolder(system, path.rstrip("/"), text.rstrip("/"))


def absolute(url: str | os.PathLike[str]) -> str:
    """A URL, or the whole path of a folder."""
    text = os.fspath(url)
    return text if "://" in text else os.path.abspath(text)


class UrlFolder:
    """A folder without the folders in it, of any file system of fsspec. Any thread may use it."""

    def __init__(self, system: Any, path: str, url: str) -> None:
        self.system = system
        """Of fsspec."""
        self._path, self._url = path, url

    def __repr__(self) -> str:
        return self._url

    def put(self, name: str, content: bytes) -> None:
        """Writes a file whole or not at all, so that it outlives this machine's next crash.

        Raises:
            ConfigurationError: it cannot be written. It may still be there later.
        """
        import fsspec.implementations.local

        path = self.path(name)

        def write() -> None:
            if isinstance(self.system, fsspec.implementations.local.LocalFileSystem):
                return _write_local(Path(path), content)
            try:
                self.system.pipe_file(path, content)
            except FileNotFoundError:  # a store with true folders
                self.system.makedirs(self._path, exist_ok=True)
                self.system.pipe_file(path, content)

        self._tried("write", name, write)

    def get(self, name: str) -> bytes | None:
        """The content of a file; None if there is none.

        Raises:
            ConfigurationError: it cannot be read.
        """
        content: bytes | None = self._tried(
            "read", name, lambda: self.system.cat_file(self.path(name))
        )
        return content

    def names(self) -> list[str]:
        """The names of files and folders in it, sorted; none if the folder is not there.

        Raises:
            ConfigurationError: they cannot be listed.
        """

        def listed() -> list[str]:
            self.system.invalidate_cache()  # other processes write there, too
            return list(self.system.ls(self._path, detail=False))

        found = [p.rstrip("/").rsplit("/", 1)[-1] for p in self._tried("list", "", listed) or ()]
        return sorted(name for name in found if not name.endswith(_PARTIAL))

    def remove(self, name: str) -> None:
        """Removes a file, if it is there.

        Raises:
            ConfigurationError: it cannot be removed.
        """
        self._tried("remove", name, lambda: self.system.rm_file(self.path(name)))

    def path(self, name: str) -> str:
        """Of a file in it, in its file system."""
        return f"{self._path}/{name}"

    def folder(self, name: str) -> UrlFolder:
        """A folder in it."""
        return UrlFolder(self.system, self.path(name), f"{self._url}/{name}")

    def _tried(self, verb: str, name: str, run: Callable[[], Any]) -> Any:
        """
        Returns:
            None where there is no such file.

        Raises:
            ConfigurationError: anything else that the file system raises.
        """
        try:
            return run()
        except Exception as error:  # file systems raise their own types
            if isinstance(error, FileNotFoundError) and verb != "write":
                return None
            why = getattr(error, "strerror", None) or described(error)
            raise ConfigurationError(
                f"cannot {verb} {self._url}/{name}: {why}; check the URL, the space and the "
                "credentials"
            ) from error


def _write_local(target: Path, content: bytes) -> None:
    partial = target.with_name(f"{target.name}.{os.getpid()}{_PARTIAL}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(target)
    opened = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(opened)  # the name, too
    finally:
        os.close(opened)


_FORMAT = "evenstep 1"


def encoded(name: str, value: Any) -> bytes:
    """
    Args:
        name: by which the document is read again.
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return f"{_FORMAT} {name} {_digest(name, text)}\n".encode() + text


def decoded(name: str, content: bytes) -> Any:
    """The value that was written under a name; None if the content is anything else."""
    head, _, text = content.partition(b"\n")
    if head != f"{_FORMAT} {name} {_digest(name, text)}".encode():
        return None
    return json.loads(text)


def _digest(name: str, text: bytes) -> str:
    return hashlib.sha256(name.encode() + b"\n" + text).hexdigest()


_SEEN = ".seen"


class Generation:
    """A planner's right to write to a run."""

    def __init__(self, folder: UrlFolder) -> None:
        """Announces a new generation.

        Args:
            folder: with a file for each generation.
        """
        self._folder = folder
        before = [int(name.split("-")[0]) for name in generations(folder)]
        self.name = f"{max(before, default=0) + 1:06d}-{secrets.token_hex(4)}"
        """Later generations have greater names. Of two that were announced at the same time the
        one with the greater name is the later."""
        self._put(self.name, {})
        self.check()

    def check(self) -> None:
        """
        Raises:
            SupersededError: a later generation has been announced.
        """
        last = generations(self._folder)[-1]
        if last != self.name:
            raise SupersededError(
                f"planner {self.name} of the run at {self._folder} has ended: planner {last} has "
                "taken over"
            )

    def note(self, written: Mapping[str, int]) -> None:
        """Notes how many reports each earlier generation has written that still count."""
        self._put(self.name + _SEEN, dict(written))

    def _put(self, name: str, value: Mapping[str, int]) -> None:
        self._folder.put(name, encoded(name, value))


def generations(folder: UrlFolder) -> list[str]:
    """The names of all generations announced, in order."""
    return [name for name in folder.names() if not name.endswith(_SEEN)]


def noted(folder: UrlFolder) -> dict[str, dict[str, int]]:
    """By generation, what it has noted; see `Generation.note`."""
    found = {}
    for name in folder.names():
        content = folder.get(name) if name.endswith(_SEEN) else None
        value = None if content is None else decoded(name, content)
        if value is not None:
            found[name[: -len(_SEEN)]] = value
    return found
