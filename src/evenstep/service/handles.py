"""How one role calls another: through a handle, never through the object.

A handle has `start`, which names a message of the role and gives a `Reply`; what the reply is
waited for, it is had by `result`. In one process a handle is the object and little else; between
processes it is an actor, and `start` sends the message at once. What goes to the same role at the
same time goes in one, by `start_all`: between processes each message has its price.

Roles call in one direction only (clients call constructors, those call the planner and loaders, and
the planner calls loaders), so that whoever waits is never waited for by the one that it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

__all__ = ["Handle", "LocalHandle", "LocalReply", "Message", "Reply", "call", "results"]

Message = tuple[str, tuple[Any, ...]]
"""The name of a method and its arguments."""


class Reply(Protocol):
    """An answer that may still be under way."""

    def result(self) -> Any:
        """Waits for it. What the role raised is raised here; asked again, the same comes again."""
        ...


class Handle(Protocol):
    """Somebody who plays a role."""

    def start(self, message: str, *arguments: Any) -> Reply:
        """Sends a message, the name of a method, and does not wait."""
        ...

    def start_all(self, messages: Sequence[Message]) -> Reply:
        """The same with several, done in this order. The reply is a list of answers; what one of
        them raises is raised, and those behind it are not done."""
        ...


def call(handle: Handle, message: str, *arguments: Any) -> Any:
    """Sends a message and waits for the answer."""
    return handle.start(message, *arguments).result()


def results(replies: Sequence[Reply]) -> list[Any]:
    """All answers, in order. Waits for every one of them before the first error is raised, so that
    nothing is still at work behind it."""
    answers, failures = [], []
    for reply in replies:
        try:
            answers.append(reply.result())
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return answers


class LocalReply:
    """Does the work when it is waited for: with nobody to do it meanwhile, earlier would only hold
    more in memory."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._answer: Any = None
        self._error: Exception | None = None

    def result(self) -> Any:
        if self._work is not None:
            work, self._work = self._work, None
            try:
                self._answer = work()
            except Exception as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._answer


class LocalHandle:
    """A role that is played in this process."""

    def __init__(self, role: Any) -> None:
        self._role = role

    def start(self, message: str, *arguments: Any) -> Reply:
        return LocalReply(lambda: getattr(self._role, message)(*arguments))

    def start_all(self, messages: Sequence[Message]) -> Reply:
        return LocalReply(lambda: [getattr(self._role, name)(*given) for name, given in messages])
