"""`files_at`: the files that a path or glob names, all of them or an error.

fsspec's own `glob` leaves out a folder that cannot be listed just now, and with it samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

_MAGIC = "*?["


def files_at(system: Any, path: str) -> dict[str, Any]:
    """By path, what an fsspec file system knows of each file; a folder without permission below the
    first wildcard has none."""
    if not _has_magic(path):
        try:
            info = system.info(path)
        except FileNotFoundError:
            return {}
        return {path: info} if info["type"] == "file" else {}
    parts = path.split("/")
    first = next(n for n, part in enumerate(parts) if _has_magic(part))
    folder = "/".join(parts[:first]) or ("/" if first else "")
    try:
        listed = system.ls(folder, detail=True)
    except FileNotFoundError:
        return {}
    return dict(_matched(system, folder, listed, parts[first:]))


def _matched(
    system: Any, folder: str, listed: Sequence[Any], parts: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Files below a folder that match the rest of a glob.

    Args:
        listed: what is in the folder.
        parts: of the glob, between slashes.
    """
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _matched(system, folder, listed, rest)
    for info in listed:
        path = info["name"].rstrip("/")
        name = path.rpartition("/")[2]
        if path == folder.rstrip("/") or not (part == "**" or fnmatchcase(name, part)):
            continue
        if info["type"] == "file":
            if not rest:
                yield info["name"], info
        elif rest or part == "**":
            with suppress(FileNotFoundError, PermissionError):
                below = system.ls(path, detail=True)
                yield from _matched(system, path, below, parts if part == "**" else rest)


def _has_magic(path: str) -> bool:
    return any(letter in path for letter in _MAGIC)
