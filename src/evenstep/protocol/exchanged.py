"""`Exchanged`: all ranks' messages of one exchange."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

Found = TypeVar("Found")


class Exchanged:
    """What the messages say is the same on all ranks. So where one process has several ranks, as a
    simulation does, they share this object, and it is worked out once."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        """
        Args:
            messages: in rank order.
        """
        self.messages = messages
        self._found: dict[Callable[..., Any], Any] = {}

    def once(self, work: Callable[..., Found], *given: Any, **options: Any) -> Found:
        """``work(*given, **options)``, which must be the same on all ranks."""
        if work not in self._found:
            self._found[work] = work(*given, **options)
        found: Found = self._found[work]
        return found
