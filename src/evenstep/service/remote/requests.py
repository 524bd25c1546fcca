"""What a process was asked and works on, and what it has asked others and waits for: so that a
service that makes no progress can say which role blocks it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Request:
    """A message, as warnings and the status show it."""

    message: str
    step: int | None = None
    source: str | None = None

    @classmethod
    def of(cls, message: str, arguments: Sequence[Any]) -> Request:
        first = arguments[0] if arguments else None
        if isinstance(first, str):
            return cls(message, source=first)
        second = arguments[1] if len(arguments) > 1 else None
        if message in ("release", "common_state") and isinstance(second, int):
            first = second  # of a client: rank and step
        step = getattr(first, "step", first)
        return cls(message, step=step if isinstance(step, int) else None)

    def __str__(self) -> str:
        if self.step is not None:
            return f"{self.message!r} of step {self.step:,}"
        return f"{self.message!r}" + (f" of source {self.source!r}" if self.source else "")


class OpenRequests:
    """Requests that are not answered yet, and since when. Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._open: dict[int, tuple[Request, dict[str, Any], float]] = {}

    @contextmanager
    def open(self, request: Request, **about: Any) -> Iterator[None]:
        """Counts the request as open within the block.

        Args:
            about: JSON-able, more about it.
        """
        with self._lock:
            number = next(self._numbers)
            self._open[number] = request, about, time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._open[number]

    def to_list(self) -> list[dict[str, Any]]:
        """JSON-able, the oldest first."""
        now = time.monotonic()
        with self._lock:
            found = list(self._open.values())
        return [{**asdict(r), **about, "seconds": now - since} for r, about, since in found]


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
