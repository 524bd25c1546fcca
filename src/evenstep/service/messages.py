"""How one role calls another: through a handle, never through the object.

``handle.send(Planner.plan, 7)`` sends a message and returns a `Reply`; `Reply.result()` waits for
the answer. Within a process a handle just calls the object; between processes it sends at once.
`send_all` sends several messages as one, since each message between processes has a fixed cost.

Roles call in one direction only (clients call constructors, constructors call the planner and
loaders, the planner calls loaders), so no two roles ever wait for each other. `WaitTimer` says how
long a role has waited for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Method = Callable[Concatenate[Any, P], T]
"""Of a role's class."""
Message = tuple[str, tuple[Any, ...], dict[str, Any]]
"""The name of a method, and its arguments without and with names."""


def message(method: Method[P, Any], *args: P.args, **named: P.kwargs) -> Message:
    """The message that has a role's method called."""
    return method.__name__, args, named


class Reply(Protocol[T_co]):
    """An answer that may still be on its way."""

    def result(self) -> T_co:
        """Waits for the answer, or raises what the role raised. Every call gives the same."""
        ...


class Handle(Protocol):
    """The address of a role."""

    def send(self, method: Method[P, T], *args: P.args, **named: P.kwargs) -> Reply[T]:
        """Sends a message without waiting."""
        ...

    def send_all(self, messages: Sequence[Message]) -> Reply[list[Any]]:
        """Sends several messages, handled in order. The reply is the list of answers; the first
        error is raised, and the messages after it are not handled."""
        ...


@overload
def call(
    handle: Handle, method: Method[P, Coroutine[Any, Any, T]], *args: P.args, **named: P.kwargs
) -> T: ...
@overload
def call(handle: Handle, method: Method[P, T], *args: P.args, **named: P.kwargs) -> T: ...
def call(handle: Handle, method: Method[..., Any], *args: Any, **named: Any) -> Any:
    """Sends a message and waits for the answer."""
    return handle.send(method, *args, **named).result()


def results(replies: Sequence[Reply[T]]) -> list[T]:
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

    def send(self, method: Method[P, T], *args: P.args, **named: P.kwargs) -> Reply[T]:
        return LocalReply(lambda: getattr(self._role, method.__name__)(*args, **named))

    def send_all(self, messages: Sequence[Message]) -> Reply[list[Any]]:
        return LocalReply(
            lambda: [getattr(self._role, name)(*args, **named) for name, args, named in messages]
        )


def request_text(message: Message) -> str:
    """A message, as warnings show it."""
    method, arguments, _ = message
    first, second = (*arguments, None, None)[:2]
    if isinstance(first, str):
        return f"{method!r} of source {first!r}"
    if method in ("release", "common_state") and isinstance(second, int):
        first = second  # of a client: rank and step
    step = getattr(first, "step", first)
    return f"{method!r} of step {step:,}" if isinstance(step, int) else repr(method)


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
