"""Channels: how messages reach a role, and how its answers come back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

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


class _SocketPending:
    def __init__(self, sent: SentFrames) -> None:
        self._sent = sent

    def wait(self, seconds: float) -> bool:
        return self._sent.wait(seconds)

    def answer(self) -> Answer:
        try:
            frames = self._sent.frames()
        except ConnectionLostError as error:
            raise RoleGoneError from error
        answer: Answer = from_frames(frames)
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


class _ThreadPending:
    def __init__(self, future: Future[Answer]) -> None:
        self._future = future

    def wait(self, seconds: float) -> bool:
        return bool(wait([self._future], seconds).done)

    def answer(self) -> Answer:
        return self._future.result()

    async def later(self) -> Answer:
        return await asyncio.wrap_future(self._future)
