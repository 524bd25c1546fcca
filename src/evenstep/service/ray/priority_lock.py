"""A two-priority lock (messages before background fill) and a timer of each message's waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evenstep.service.ray.open_requests import OpenRequests, Request


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

    def __init__(self, requests: OpenRequests | None = None) -> None:
        """
        Args:
            requests: of all threads, where waits are noted while they last.
        """
        self._requests = requests or OpenRequests()
        self.waited: dict[str, float] = {}

    def reset(self) -> None:
        """Begins another message."""
        self.waited = {}

    def add(self, what: str, seconds: float) -> None:
        self.waited[what] = self.waited.get(what, 0.0) + seconds

    @contextmanager
    def waiting(self, request: Request, **about: Any) -> Iterator[None]:
        """Counts the time in the block.

        Args:
            about: who is waited for, see `OpenRequests.open`.
        """
        begin = time.perf_counter()
        try:
            with self._requests.open(request, **about):
                yield
        finally:
            self.add(request.message, time.perf_counter() - begin)
