"""How a batcher reaches its trainer: pipes, and a count of credits.

Messages carry the serial number of the pass they belong to, so that what an abandoned pass left in
a pipe is recognised and thrown away.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from evenstep.batch.step_info import StepInfo
from evenstep.loader.batcher.progress import StepProgress
from evenstep.loader.batcher.sample_store import Closed

__all__ = ["BatcherFailure", "PipePorts", "RemoteCause"]

_LOOK_UP = 0.2  # seconds between looks at whether the trainer has left


class RemoteCause(Exception):
    """Carries the traceback of an error in another process or thread, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class BatcherFailure:
    """A pass failed."""

    error: Exception
    traceback: str

    def reraise(self) -> None:
        raise self.error from RemoteCause(self.traceback)


class PipePorts:
    """The batcher's side, for one pass."""

    def __init__(
        self, connection: Connection, serial: int, prefetch: int, send: Callable[[Any], None]
    ) -> None:
        self._connection = connection
        self._serial = serial
        self._send = send
        self._credits = threading.Semaphore(prefetch)
        self._delivers = True
        self._closed = threading.Event()

    def exchange(self, message: bytes) -> list[bytes]:
        if self._closed.is_set():
            raise Closed
        self._connection.send((self._serial, message))
        while True:
            while not self._connection.poll(_LOOK_UP):
                if self._closed.is_set():
                    raise Closed
            received: tuple[int, list[bytes]] = self._connection.recv()
            if received[0] == self._serial:
                return received[1]

    def await_credit(self) -> None:
        self._credits.acquire()
        if self._closed.is_set() or not self._delivers:
            raise Closed

    def end_delivery(self) -> None:
        self._delivers = False
        self._credits.release()

    def deliver(self, step: StepInfo, batch: Any, mark: StepProgress) -> None:
        if self._closed.is_set():
            raise Closed
        self._send((step, batch, mark))

    def tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the trainer has closed its end
            self._connection.send((self._serial, message))

    # What the trainer's side makes happen

    def credit(self) -> None:
        """The trainer has taken a step."""
        self._credits.release()

    def close(self) -> None:
        """The trainer has left the pass."""
        self._closed.set()
        self._credits.release()

    def finish(self) -> None:
        """Tells the exchange that no message will follow."""
        self.tell(b"")
