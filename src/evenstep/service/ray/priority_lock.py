"""Who is at work in an actor, and what it waited for meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["PriorityLock", "WaitTimer"]


class PriorityLock:
    """One at a time. Whoever comes last has no turn while anybody else waits for one."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._busy = False
        self._waiting = 0

    @contextmanager
    def first(self) -> Iterator[None]:
        """For messages."""
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: not self._busy)
            self._waiting -= 1
            self._busy = True
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def last(self) -> Iterator[None]:
        """For what can wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy and not self._waiting)
            self._busy = True
        try:
            yield
        finally:
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._busy = False
            self._changed.notify_all()


class WaitTimer(threading.local):
    """Seconds that the message at hand has waited for other roles, by what was asked of them. Each
    thread has its own."""

    def __init__(self) -> None:
        self.waited: dict[str, float] = {}

    def begin(self) -> None:
        """Another message."""
        self.waited = {}

    def add(self, what: str, seconds: float) -> None:
        self.waited[what] = self.waited.get(what, 0.0) + seconds
