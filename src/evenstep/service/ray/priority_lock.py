"""A two-priority lock (messages before background fill) and a timer of each message's waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PriorityLock:
    """A lock that background work gets only when nothing urgent waits for it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held = False
        self._urgent_waiting = 0

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """Holds the lock, for messages."""
        with self._changed:
            self._urgent_waiting += 1
            self._changed.wait_for(lambda: not self._held)
            self._urgent_waiting -= 1
            self._held = True
        try:
            yield
        finally:
            self._release()

    @contextmanager
    def background(self) -> Iterator[None]:
        """Holds the lock, for work that can wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held and not self._urgent_waiting)
            self._held = True
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        with self._changed:
            self._held = False
            self._changed.notify_all()


class WaitTimer(threading.local):
    """Seconds that the message being handled has waited for other roles, by the message sent to
    them. Each thread has its own."""

    def __init__(self) -> None:
        self.waited: dict[str, float] = {}

    def reset(self) -> None:
        """Begins another message."""
        self.waited = {}

    def add(self, what: str, seconds: float) -> None:
        self.waited[what] = self.waited.get(what, 0.0) + seconds
