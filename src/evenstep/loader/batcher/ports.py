"""How a batcher reaches its trainer: pipes, and credits for finished steps.

Messages carry the serial number of their pass, so that those left over from an abandoned pass are
recognised and dropped.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.batch.step_info import StepInfo
from evenstep.cost.vision_language import UNMEASURED
from evenstep.errors import PeerError
from evenstep.loader.batcher.batcher_messages import Observed, StepProgress
from evenstep.loader.batcher.sample_store import Closed
from evenstep.protocol.slow_ranks import UNTIMED

_POLL_SECONDS = 0.2  # between two checks whether the trainer has left
_TAKEN_SECONDS = 0.005  # whether it has taken a step, while groups grow


class RemoteCause(Exception):
    """Carries the traceback of an error in another process or thread, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class BatcherFailure:
    """A pass failed. Sent to the trainer in place of `EpochEnd`."""

    error: Exception
    traceback: str

    def reraise(self) -> None:
        raise self.error from RemoteCause(self.traceback)


class PipePorts:
    """The batcher's side of the pipes, for one pass. Calls on behalf of the batcher raise `Closed`
    once the trainer has left."""

    def __init__(
        self, connection: Connection, serial: int, prefetch: int, send: Callable[[Any], None]
    ) -> None:
        self._connection = connection
        self._serial = serial
        self._send = send
        # No semaphore: its lock stays locked if memory runs out while it is held.
        self._credits: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(prefetch):
            self._credits.put(None)
        self._delivering = True
        self._closed = threading.Event()
        self._ends = False
        self._answered = True
        """What was sent last has been answered."""
        self.measured: Observed = UNMEASURED, (0, 0), UNTIMED
        """What the trainer has measured: `Agreed.ratios`, `Agreed.found` and `Agreed.pace`."""
        self.found = 0, 0
        """What was measured to fit, when the trainer took its last step: no later, so that rounds
        do not depend on timing while groups grow."""
        self.paces: Int64Array | None = None
        """What all ranks have told of themselves since a step was delivered."""
        self._taken = 0
        """Steps that the trainer has taken."""
        self._broken = False
        """A message was read in part, so the next one cannot be found."""

    def exchange(self, message: bytes) -> list[bytes]:
        """Sends a message; returns all ranks' messages in rank order, empty for one that left."""
        if self._closed.is_set():
            raise Closed
        try:
            self._connection.send((self._serial, message))
            self._answered = False
            while not self._broken:
                while not self._connection.poll(_POLL_SECONDS):
                    if self._closed.is_set():
                        raise Closed
                try:
                    received: tuple[int, list[bytes]] = self._connection.recv()
                    serial, messages = received
                except BaseException:
                    self._broken = True
                    raise
                if serial == self._serial:
                    self._answered = True
                    if not messages:  # the trainer has left, and is about to say so
                        self._closed.wait()
                        raise Closed
                    return messages
        except (EOFError, ConnectionError) as error:
            # The exchange's end is closed, and the trainer knows why: that is what it raises.
            raise PeerError("the exchange between ranks has ended") from error
        return []

    def await_taken(self, steps: int) -> None:
        """Returns when the trainer has taken so many steps of this pass."""
        while self._taken < steps:
            if self._closed.is_set():
                raise Closed
            time.sleep(_TAKEN_SECONDS)

    def await_credit(self) -> None:
        """Returns when the trainer has room for one more finished step."""
        self._credits.get()
        if self._closed.is_set() or not self._delivering:
            self._credits.put(None)  # another thread may wait, too
            raise Closed

    def end_delivery(self) -> None:
        """No more steps will be delivered: `await_credit` raises `Closed` from now on."""
        self._delivering = False
        self._credits.put(None)

    def deliver(self, step: StepInfo, batch: Any, progress: StepProgress) -> None:
        """Hands a finished step to the trainer."""
        if self._closed.is_set():
            raise Closed
        if (paces := self.paces) is not None:
            self.paces, progress = None, replace(progress, paces=paces)
        self._send((step, batch, progress))

    def announce(self, message: bytes) -> None:
        """Sends all ranks a message after the last exchange, without waiting for an answer."""
        self._tell(message)
        self._answered = False  # the answer comes, but no call waits for it

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # the trainer has closed its end
            self._connection.send((self._serial, message))

    # Called on behalf of the trainer

    def credit(self) -> None:
        """The trainer has taken a step."""
        self.found = self.measured[1]
        self._taken += 1
        self._credits.put(None)

    def close(self, ends: bool = False) -> None:
        """The trainer has left the pass, with which the batcher `ends`."""
        self._ends = self._ends or ends
        self._closed.set()
        self._credits.put(None)

    def finish(self) -> None:
        """Tells the exchange thread that no message will follow."""
        self._tell(b"")

    def await_answer(self) -> None:
        """Returns when nothing of this pass is on its way to the batcher any more, or the batcher
        ends. The exchange thread may still be sending an answer that no call waited for, and is
        blocked until it is read."""
        with contextlib.suppress(EOFError, OSError):  # the trainer has closed its end
            while not (self._answered or self._broken or self._ends):
                if self._connection.poll(_POLL_SECONDS):
                    self._answered = self._connection.recv()[0] == self._serial
