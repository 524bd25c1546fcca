"""Pipes between simulated processes, as the kernel has them.

They hold so many bytes. An end is held by every process that made, was passed or inherited it; what
is written can be read until the last holder of the other end is gone. Whoever is killed while it
writes leaves a part of a message.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from simulated_world import Fiber, Process, World, current

CAPACITY = 1 << 16


class _Message:
    def __init__(self, data: bytes, sender: Fiber) -> None:
        self.data, self.sender, self.written = data, sender, False


class Channel:
    """One direction of a pipe."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.messages: deque[_Message] = deque()
        self.unread = 0
        self.readers: list[Any] = []
        self.writers: list[Any] = []

    def torn(self) -> bool:
        """Whether the next message will never be whole."""
        first = self.messages[0]
        return not first.written and not first.sender.process.alive


class Connection:
    """One end."""

    def __init__(self, receives: Channel | None, sends: Channel | None) -> None:
        self._receives, self._sends = receives, sends
        self.peer: Connection = self
        self.holders: set[Process] = set()
        self.inherited = True  # by processes that are forked
        self._reset = False  # the other end was closed with bytes in it that nobody had read
        self._busy: dict[str, Fiber] = {}

    def hold(self, process: Process) -> None:
        if process.alive and process not in self.holders:
            self.holders.add(process)
            process.ends.append(self)

    def release(self, process: Process) -> None:
        if process not in self.holders:
            return
        self.holders.remove(process)
        process.ends.remove(self)
        if not self.holders:
            world = process.world
            if self._receives is not None and self._receives.messages:
                self.peer._reset = True
            for channel in (self._sends, self._receives):
                if channel is not None:
                    world.wake(channel.readers)
                    world.wake(channel.writers)

    @property
    def closed(self) -> bool:
        return current().process not in self.holders

    def close(self) -> None:
        me = current()
        me.process.world.pause()
        for what, other in self._busy.items():
            if other is not me and other.process is me.process and other.alive:
                me.process.world.violate(f"{me} closes a pipe that {other} {what}")
        self.release(me.process)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take_all(self) -> None:
        """Whoever sends to this end need not wait for room any more."""
        assert self._receives is not None, "a pipe that only sends"
        self._receives.capacity = sys.maxsize
        current().process.world.wake(self._receives.writers)

    def fileno(self) -> int:
        return id(self)

    def _begin(self, what: str, by_kernel: bool = False) -> World:
        me = current()
        me.process.world.pause()
        if self.closed:
            raise OSError("handle is closed")
        if not by_kernel and (error := me.process.fails.pop(what.split()[0], None)) is not None:
            raise error
        other = self._busy.get(what)
        if other is not None and other.process is me.process and other.alive:
            me.process.world.violate(f"{me} {what} a pipe while {other} does")
        self._busy[what] = me
        return me.process.world

    def send(self, value: Any, *, by_kernel: bool = False) -> None:
        """
        Args:
            by_kernel: nothing that Python lacks can make it fail.
        """
        self.send_bytes(pickle.dumps(value), by_kernel=by_kernel)

    def send_bytes(self, data: bytes, *, by_kernel: bool = False) -> None:
        channel = self._sends
        assert channel is not None, "a pipe that only receives"
        world = self._begin("sends into", by_kernel)
        try:
            self._check_reader()
            message = _Message(data, current())
            channel.messages.append(message)
            channel.unread += len(data)
            world.wake(channel.readers)
            while channel.unread > channel.capacity and self.peer.holders:
                world.until(
                    lambda: channel.unread <= channel.capacity or not self.peer.holders,
                    channel.writers,
                )
            message.written = True
            self._check_reader()
        finally:
            self._busy.pop("sends into", None)

    def _check_reader(self) -> None:
        if not self.peer.holders:
            raise BrokenPipeError(32, "Broken pipe")

    def recv(self, *, by_kernel: bool = False) -> Any:
        return pickle.loads(self.recv_bytes(by_kernel=by_kernel))

    def recv_bytes(self, *, by_kernel: bool = False) -> bytes:
        channel = self._receives
        assert channel is not None, "a pipe that only sends"
        world = self._begin("receives from", by_kernel)
        try:
            world.until(
                lambda: (channel.messages and not channel.torn()) or not self.peer.holders,
                channel.readers,
            )
            if not channel.messages or channel.torn():
                if self._reset:
                    raise ConnectionResetError(104, "Connection reset by peer")
                raise EOFError
            message = channel.messages.popleft()
            channel.unread -= len(message.data)
            world.wake(channel.writers)
            return message.data
        finally:
            self._busy.pop("receives from", None)

    def readable(self) -> bool:
        return bool(self._receives and self._receives.messages) or not self.peer.holders

    def readers(self) -> list[Any]:
        assert self._receives is not None
        return self._receives.readers

    def poll(self, timeout: float | None = 0.0) -> bool:
        world = self._begin("polls")
        self._busy.pop("polls", None)  # any number of threads may
        return world.until(self.readable, self.readers(), timeout=timeout)

    def arrives(self, timeout: float | None) -> bool:
        """As `poll`, but where the other end is closed it waits on."""
        channel = self._receives
        assert channel is not None

        def whole() -> bool:
            return bool(channel.messages) and not channel.torn()

        world = self._begin("polls")
        self._busy.pop("polls", None)
        return world.until(whole, channel.readers, timeout=timeout)


def pipe(
    duplex: bool = True, *, first: Process, second: Process, capacity: int = CAPACITY
) -> tuple[Connection, Connection]:
    """Both ends of a new pipe, as multiprocessing.Pipe; who holds the first, and who the second."""
    there, back = Channel(capacity), Channel(capacity)
    one = Connection(there, back if duplex else None)
    two = Connection(back if duplex else None, there)
    one.peer, two.peer = two, one
    one.hold(first)
    two.hold(second)
    return one, two


def wait(sources: Iterable[Any], timeout: float | None = None) -> list[Any]:
    """As `multiprocessing.connection.wait`."""
    sources = list(sources)
    world = current().process.world

    def ready() -> list[Any]:
        return [source for source in sources if source.readable()]

    check: Callable[[], bool] = lambda: bool(ready())  # noqa: E731
    world.until(check, *(source.readers() for source in sources), timeout=timeout)
    return ready()
