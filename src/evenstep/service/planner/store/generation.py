"""`Generation`: which of a run's planners may write; and documents, JSON below a checksum.

Each planner that starts on a run announces itself with a higher number, and then notes what its
predecessors have written. After each write, a planner checks whether a later one has announced
itself. So if a planner was thought dead and was only slow, either its successor has noted what it
wrote, or it finds out before anyone relies on the write. This needs no lock and no clock, only a
store that lists what has been written. No two generations write the same file.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from typing import Any

from evenstep.errors import SupersededError
from evenstep.service.planner.store.url_folder import UrlFolder

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
