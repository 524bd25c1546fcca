"""Files that are written whole or not at all, and files of lines."""

from __future__ import annotations

import json
import logging
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evenstep.errors import ConfigurationError

logger = logging.getLogger("evenstep")


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path in the folder of `path`, which is created if needed. The file written
    there replaces `path` when the block ends. After an exception `path` is unchanged, and the
    temporary file is removed.

    Raises:
        ConfigurationError: the file cannot be written: the disk is full, or `path` is a folder or a
            device.
    """
    target = Path(path)
    # Of this call alone: threads, and hosts that share the folder, may write the same file.
    partial = target.parent / f"{target.name}.partial-{secrets.token_hex(8)}"
    try:
        if target.exists() and not (target.is_file() or target.is_dir()):
            # Replacing it would turn it into a file, even /dev/null.
            raise ConfigurationError(f"{path} is a device or pipe, not a file; give another path")
        target.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(target)
    except OSError as error:
        raise cannot("write", path, error) from error
    finally:
        with suppress(OSError):  # the folder may be a file
            partial.unlink(missing_ok=True)


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text file whole or not at all: see `replacing`."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


class LineFile:
    """Lines of a run, such as its steps or deaths, added to a file. What only observes a run must
    not end it: once the file is there, one that cannot be written, on a full disk say, is a
    warning, and the lines are missing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """
        Raises:
            ConfigurationError: the file cannot be written.
        """
        self._path = Path(path)
        self._missing = 0
        try:
            self._append(b"")
        except OSError as error:
            raise cannot("write", path, error) from error

    def add(self, line: bytes) -> None:
        """Adds a line, without its end, or nothing of it."""
        try:
            self._append(line + b"\n")
        except OSError as error:
            self._missing += 1
            if self._missing == 1:
                logger.warning(
                    "%s cannot be written (%s); the run goes on, and the lines are missing",
                    *(self._path, error.strerror or error),
                )
            return
        if self._missing:
            logger.warning("%s is written again; %d lines are missing", self._path, self._missing)
            self._missing = 0

    def _append(self, line: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Opened for each line, so that there is nothing to close and forks share no file.
        with self._path.open("ab+", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if size and line:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line  # after one that was cut off
            try:
                written = 0
                while written < len(line):
                    written += file.write(line[written:])
            except OSError:
                with suppress(OSError):  # of a file that is a device
                    file.truncate(size)
                raise


def read_json(path: str | os.PathLike[str], *, again: str) -> Any:
    """The value in a JSON file.

    Args:
        again: how to get a new file, for messages.

    Raises:
        ConfigurationError: the file cannot be read, or is not JSON.
    """
    try:
        return json.loads(Path(path).read_bytes())
    except OSError as error:
        raise cannot("read", path, error, again) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is damaged: it is not JSON ({error}); {again}") from error


def cannot(
    verb: str,
    path: str | os.PathLike[str],
    error: OSError,
    remedy: str = "check the path, and that there is space",
) -> ConfigurationError:
    """The error to raise when a file cannot be read or written."""
    return ConfigurationError(f"cannot {verb} {path}: {error.strerror or error}; {remedy}")
