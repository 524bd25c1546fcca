"""What a process was asked, as warnings say it, and how long it has waited for others."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from evenstep.service.messages import Message


@dataclass(frozen=True)
class Request:
    """A message, as warnings show it."""

    message: str
    step: int | None = None
    source: str | None = None

    @classmethod
    def of(cls, message: Message) -> Request:
        method, arguments, _ = message
        first = arguments[0] if arguments else None
        if isinstance(first, str):
            return cls(method, source=first)
        second = arguments[1] if len(arguments) > 1 else None
        if method in ("release", "common_state") and isinstance(second, int):
            first = second  # of a client: rank and step
        step = getattr(first, "step", first)
        return cls(method, step=step if isinstance(step, int) else None)

    def __str__(self) -> str:
        if self.step is not None:
            return f"{self.message!r} of step {self.step:,}"
        return f"{self.message!r}" + (f" of source {self.source!r}" if self.source else "")


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
