"""A timer of each message's waits for other roles."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from evenstep.service.remote.open_requests import OpenRequests, Request


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
            what = "plan" if request.message == "has_plan" else request.message
            self.add(what, time.perf_counter() - begin)
