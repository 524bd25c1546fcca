"""What the service uses of its sockets, on the simulated cluster.

Messages may be late, in any order, and arrive twice. When a process dies, those who wait for it
hear so, each at its own time; when a connection breaks they hear the same of one that lives,
whether it has handled the message or not.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from processes import Process
from simulated_actors import running_cluster
from simulated_objects import Shared
from simulated_threading import Thread, world
from simulated_world import current

from evenstep.service.transport.connection import ConnectionLostError

Frames = list[bytes]


class _Message:
    def __init__(self, caller: Process, frames: Frames) -> None:
        self.caller, self.frames = caller, frames
        self.decided = False
        self.answer: Frames | None = None
        """None if it is lost."""
        self.waiters: list[Any] = []

    def decide(self, answer: Frames | None) -> None:
        if not self.decided:
            self.decided, self.answer = True, answer
            self.caller.world.wake(self.waiters)


class Endpoint(Shared):
    def __init__(self, server: Server) -> None:
        self.server = server


class Server:
    """As `evenstep.service.transport.server.Server`."""

    def __init__(self, answering: Callable[[Frames], Any], **options: Any) -> None:
        self._answering, self._cluster = answering, running_cluster()
        self._process = current().process
        self._process.ends.append(self)
        self._cluster.servers.append(self)
        self._arrived: deque[_Message] = deque()
        self._idle: list[Any] = []
        self._pending: dict[_Message, None] = {}
        self._closed = False
        self.endpoint = Endpoint(self)
        Thread(target=self._serve, name="server", daemon=True).start()

    def close(self) -> None:
        self._closed = True
        self.release(self._process)
        world().wake(self._idle)

    def _serve(self) -> None:
        while world().until(lambda: bool(self._arrived) or self._closed, self._idle):
            if self._closed:
                return
            message = self._arrived.popleft()
            future = self._answering(list(message.frames))
            future.add_done_callback(
                lambda answered, message=message: self._answer(message, answered)
            )

    def _answer(self, message: _Message, answered: Any) -> None:
        if answered.exception() is not None:  # the role has ended
            return
        copied = [bytes(frame) for frame in answered.result()]
        self._pending.pop(message, None)  # from here on without a step, until it is on its way
        self._cluster.later(lambda: message.decide(copied))

    def send(self, message: _Message) -> None:
        self._pending[message] = None
        self._cluster.later(lambda: self._arrive(message))

    def _arrive(self, message: _Message) -> None:
        if self._closed or not self._process.alive:
            self._lose(message)
        elif message in self._pending:
            self._arrived.append(message)
            self._process.world.wake(self._idle)

    def _lose(self, message: _Message) -> None:
        self._pending.pop(message, None)
        self._cluster.later(lambda: message.decide(None))

    def release(self, process: Process) -> None:
        """The process has ended."""
        for message in list(self._pending):
            self._lose(message)

    def cut(self, caller: Process) -> None:
        """Breaks the connections with one caller."""
        for message in [each for each in self._pending if each.caller is caller]:
            if message in self._arrived and self._process.world.choices.pick(2):
                self._arrived.remove(message)
            self._lose(message)


class Connections:
    """As `evenstep.service.transport.connection.Connections`."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._server = endpoint.server

    def send(self, frames: Sequence[Any]) -> Pending:
        cluster, me = running_cluster(), current().process
        copied = [bytes(frame) for frame in frames]
        message = _Message(me, copied)
        self._server.send(message)
        if cluster.repeats():
            self._server.send(_Message(me, copied))
        return Pending(message)

    def close(self) -> None:
        pass


class Pending:
    def __init__(self, message: _Message) -> None:
        self.message = message

    def wait(self, seconds: float | None = None) -> bool:
        message = self.message
        return world().until(lambda: message.decided, message.waiters, timeout=seconds)

    def frames(self) -> Any:
        self.wait()
        if self.message.answer is None:
            raise ConnectionLostError
        return [bytearray(frame) for frame in self.message.answer]
