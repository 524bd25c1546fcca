"""How messages reach a role, and how its answers come back.

`RolePlace` is the process that runs a role, and the next one when it has died. A role that dies is
restarted in another process, which draws, plans and builds the same. All handles of a role in a
process share its place, so its new process is searched for once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

from evenstep.errors import LoaderDiedError
from evenstep.service.messages import Message
from evenstep.service.remote.role_threads import in_thread
from evenstep.service.transport.connection import ConnectionLostError, Connections
from evenstep.service.transport.connection import Pending as SentFrames
from evenstep.service.transport.endpoint import Endpoint
from evenstep.service.transport.frames import from_frames, to_frames


@dataclass(frozen=True)
class Answer:
    """What a role's process returns."""

    value: Any = None
    """The list of the role's answers, one for each message."""
    error: Exception | None = None
    """Raised instead."""
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds that the answer took, by stage."""

    def only(self) -> Any:
        """The role's answer to a single message, or raises the error."""
        if self.error is not None:
            raise self.error
        return self.value[0]


class RoleGoneError(Exception):
    """The role's process has ended. Its cause says how that was noticed."""


class PendingAnswer(Protocol):
    """The answer to messages that were sent."""

    def wait(self, seconds: float) -> bool:
        """Waits until it has arrived, or the role is gone; False if neither is in time."""
        ...

    def answer(self) -> Answer:
        """The answer, which is waited for.

        Raises:
            RoleGoneError: it cannot arrive any more.
        """
        ...

    async def later(self) -> Answer:
        """As `answer`, in an event loop."""
        ...


class Channel(Protocol):
    """To one role. Can be sent to other processes."""

    def send(self, messages: Sequence[Message]) -> PendingAnswer:
        """Sends messages, without waiting for the answer."""
        ...

    def close(self) -> None:
        """Closes connections of this process that no message uses. Idempotent."""
        ...


@dataclass(frozen=True)
class SocketChannel:
    """To a role that listens on sockets."""

    endpoint: Endpoint

    def send(self, messages: Sequence[Message]) -> _SocketPending:
        frames = to_frames(list(messages))
        return _SocketPending(_connections(self.endpoint, os.getpid()).send(frames))

    def close(self) -> None:
        _connections(self.endpoint, os.getpid()).close()


@cache
def _connections(endpoint: Endpoint, process: int) -> Connections:
    """All handles of an endpoint share its connections; a fork has its own."""
    return Connections(endpoint)


@dataclass(frozen=True)
class _SocketPending:
    sent: SentFrames

    def wait(self, seconds: float) -> bool:
        return self.sent.wait(seconds)

    def answer(self) -> Answer:
        try:
            answer: Answer = from_frames(self.sent.frames())
        except ConnectionLostError as error:
            raise RoleGoneError from error
        return answer

    async def later(self) -> Answer:
        return await in_thread(self.answer)


class ThreadChannel:
    """To a role of this process, whose messages are handled in other threads. When it is sent to
    another process, it becomes the channel to the role's sockets."""

    def __init__(self, host: Any) -> None:
        """
        Args:
            host: the role's `RoleHost`.
        """
        self._host = host

    def send(self, messages: Sequence[Message]) -> _ThreadPending:
        return _ThreadPending(self._host.submit(messages))

    def close(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return SocketChannel, (self._host.endpoint,)


@dataclass(frozen=True)
class _ThreadPending:
    future: Future[Answer]

    def wait(self, seconds: float) -> bool:
        return bool(wait([self.future], seconds).done)

    def answer(self) -> Answer:
        return self.future.result()

    async def later(self) -> Answer:
        return await asyncio.wrap_future(self.future)


ATTEMPTS = 4
"""Processes of a role that get the same request. What kills four of them would kill all."""


@dataclass(frozen=True)
class Location:
    """The process that runs a role."""

    channel: Channel
    process: int | None = None
    host: str = ""
    born: int = 0
    """Nanoseconds since 1970 when it started: of two processes, the later one counts."""
    promoted: bool = False
    """Whether it was a standby before."""

    @property
    def about(self) -> dict[str, Any]:
        """JSON-able."""
        return {"process": self.process, "host": self.host}


NOWHERE: Any = Location(None)  # type: ignore[arg-type]
"""That of a role whose process is not known."""


class Locator(Protocol):
    """Finds the process that runs a role."""

    def locate(self, dead: Location | None) -> Location:
        """Waits for the process that runs the role now.

        Args:
            dead: the process to which connections were lost. If it is alive after all, the result
                is the same process.

        Raises:
            RoleGoneError: the role is not restarted any more.
            EvenstepError: it could not be restarted.
        """
        ...


class RolePlace:
    """See the module docstring. Can be sent to other processes."""

    def __init__(
        self, role: str, location: Location | None = None, locator: Locator | None = None
    ) -> None:
        """
        Args:
            role: such as "Source Loader 2".
            location: None if it is not known yet.
            locator: None for a role that is never restarted.
        """
        self.role = role
        self._location, self._locator = location, locator
        self._lock = threading.Lock()

    @property
    def known(self) -> Location | None:
        """The last location, without a search."""
        return self._location

    def location(self) -> Location:
        """The location; searches for it if it is not known yet.

        Raises:
            RoleGoneError, EvenstepError: see `Locator.locate`.
        """
        with self._lock:
            if self._location is None:
                self._location = self._find(None)
            return self._location

    def successor(self, dead: Location) -> Location:
        """The location after one to which connections were lost.

        Raises:
            RoleGoneError, EvenstepError: see `Locator.locate`.
        """
        with self._lock:
            if self._location is None or self._location is dead:
                dead.channel.close()  # or a job of many restarts would run out of sockets
                self._location = self._find(dead)
            return self._location

    def _find(self, dead: Location | None) -> Location:
        if self._locator is None:
            raise RoleGoneError
        return self._locator.locate(dead)

    def disconnect(self) -> None:
        """Closes connections of this process that no message uses. Idempotent."""
        if self._location is not None:
            self._location.channel.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return RolePlace, (self.role, self._location, self._locator)


def located(role: str, at: Location | None) -> str:
    """A role with its process and host, as far as they are known."""
    known = at is not None and at.process is not None
    return f"{role} (process {at.process} on {at.host})" if at is not None and known else role


def cause_of_death(
    name: str, error: BaseException | None = None, *, request: str = ""
) -> LoaderDiedError:
    """The error to raise when a role is gone for good.

    Args:
        error: how that was noticed.
        request: what killed several processes of the role.
    """
    how = "it ran out of memory or was killed, see its log and the system's"
    if request:
        how = f"{ATTEMPTS} processes died one after another that were asked {request}: {how}"
    death = LoaderDiedError(
        f"{name} of the service died; {how}. Start the service again from the state saved last"
    )
    death.__cause__ = error
    return death
