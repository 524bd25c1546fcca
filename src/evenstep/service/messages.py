"""How one role calls another: through a handle, never through the object.

`Handle.send(message, *arguments)` sends a message and returns a `Reply`; `Reply.result()` waits for
the answer. Within a process a handle just calls the object; between processes it sends at once.
`send_all` sends several messages as one, since each message between processes has a fixed cost.

Roles call in one direction only (clients call constructors, constructors call the planner and
loaders, the planner calls loaders), so no two roles ever wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

Message = tuple[str, tuple[Any, ...]]
"""The name of a method of the role's class, and its arguments."""


class Reply(Protocol):
    """An answer that may still be on its way."""

    def result(self) -> Any:
        """Waits for the answer, or raises what the role raised. Every call gives the same."""
        ...


class Handle(Protocol):
    """The address of a role."""

    def send(self, message: str, *arguments: Any) -> Reply:
        """Sends a message without waiting."""
        ...

    def send_all(self, messages: Sequence[Message]) -> Reply:
        """Sends several messages, handled in order. The reply is the list of answers; the first
        error is raised, and the messages after it are not handled."""
        ...


def call(handle: Handle, message: str, *arguments: Any) -> Any:
    """Sends a message and waits for the answer."""
    return handle.send(message, *arguments).result()


def results(replies: Sequence[Reply]) -> list[Any]:
    """All answers, in order. Waits for all replies before it raises the first error, so that
    nothing is still running when it raises."""
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
    """Makes the call when its result is first requested: no other thread could make it earlier, and
    an earlier result would only take memory."""

    def __init__(self, run: Callable[[], Any]) -> None:
        self._run: Callable[[], Any] | None = run
        self._answer: Any = None
        self._error: Exception | None = None

    def result(self) -> Any:
        if self._run is not None:
            run, self._run = self._run, None
            try:
                self._answer = run()
            except Exception as error:
                self._error = error
        if self._error is not None:
            raise self._error
        return self._answer


class LocalHandle:
    """A role in this process."""

    def __init__(self, role: Any) -> None:
        self._role = role

    def send(self, message: str, *arguments: Any) -> Reply:
        return LocalReply(lambda: getattr(self._role, message)(*arguments))

    def send_all(self, messages: Sequence[Message]) -> Reply:
        return LocalReply(lambda: [getattr(self._role, name)(*args) for name, args in messages])
