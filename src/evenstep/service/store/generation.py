"""`Generation`: which of a run's planners may write.

Each planner that begins on a run announces itself with a higher number, and then notes what its
predecessors have written. Whoever writes looks afterwards whether a later planner has announced
itself. So of a planner that was thought dead and was only slow, either the successor has noted what
it wrote, or it finds out before anyone relies on that. No lock and no clock is needed, only a store
that lists what has been written, and no two generations write the same file.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from evenstep.errors import SupersededError
from evenstep.service.store.document import decoded, encoded
from evenstep.service.store.url_folder import UrlFolder

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
