"""`Session`: the exchange thread's end of one pass, between the batcher's pipe and the trainer.

A `Tick` is what ranks tell each other: whether a rank has a message yet, what its trainer does, and
the message. As bytes:

    bytes   field     values
    1       mark      0xE5, by which other formats are refused
    1       state     0 waiting for its batcher, 1 has a message, 2 done
    1       doing     what its trainer does: see `Doing`
    4       step      the last step that the trainer took; -1 before the first
    4       seconds   for how long it has been doing this
    4       length    bytes of the message; 0 unless the state is 1

All integers are little-endian. The message follows, as far as it fits into `FRAME` bytes; zeros
fill the rest.
"""

from __future__ import annotations

import enum
import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import NamedTuple

from evenstep.errors import DamagedMessageError, LoaderDiedError, PeerError, described
from evenstep.protocol.wire import abort_message, check_no_abort

FRAME = 1024
"""Bytes of a tick. A longer message takes a second gather."""

LONGEST = 1 << 28
"""Bytes that a message may have. A damaged length must not make ranks allocate more than that; what
is this long can only be a sample that is lent."""

WAITING, MESSAGE, DONE = 0, 1, 2

_MARK = 0xE5
_HEAD = struct.Struct("<BBBiII")

HEAD = _HEAD.size
"""Bytes before the message."""


class Doing(enum.IntEnum):
    """What a trainer does, as far as its loader can tell."""

    WAITS = 0
    """It has asked for the next batch."""
    WORKS = 1
    """It has taken a batch and not asked for the next one."""
    HAS_LEFT = 2
    """Its pass is over or abandoned."""


class Tick(NamedTuple):
    """The head of a tick."""

    state: int
    doing: Doing
    step: int
    seconds: int
    length: int


def encode_tick(tick: Tick, message: bytes) -> bytes:
    """The tick and its whole message; the first `FRAME` bytes go first."""
    return _HEAD.pack(_MARK, *tick) + message


def decode_ticks(frames: Sequence[bytes]) -> list[Tick]:
    """The heads of all ranks' ticks.

    Raises:
        DamagedMessageError: one cannot have been sent by this version.
    """
    ticks = []
    for rank, frame in enumerate(frames):
        mark, state, doing, step, seconds, length = _HEAD.unpack_from(frame)
        fits = 0 < length <= LONGEST if state == MESSAGE else length == 0
        if mark != _MARK or state > DONE or doing > max(Doing) or step < -1 or not fits:
            raise DamagedMessageError(
                f"rank {rank} sent a damaged tick: {frame[:HEAD].hex(' ')} (a message may have "
                f"{LONGEST:,} bytes); install the same version of evenstep on every rank, and "
                "check memory and network if they have it"
            )
        ticks.append(Tick(state, Doing(doing), step, seconds, length))
    return ticks


_DRAIN_LIMIT = 5.0
"""Seconds in which a batcher ends a pass that the trainer has left, or is killed."""


class Session:
    """One pass's use of an exchange. Begun by the trainer, served by the exchange thread."""

    def __init__(
        self,
        connection: Connection | None,
        serial: int,
        alive: Callable[[], bool] = lambda: True,
        cause_of_death: Callable[[], str] = lambda: "its batcher process died",
        *,
        of_processes: bool = False,
    ) -> None:
        """
        Args:
            connection: pipe to the batcher; None for a pass that is left before it has one.
            serial: number of the pass; messages of other passes are dropped.
            alive: whether the batcher lives. Its children may hold the pipe open after it died.
            cause_of_death: what the other ranks receive as a reason when it does not.
            of_processes: each process has a message of its own, context-parallel peers too.
        """
        self.of_processes = of_processes
        self.connection = connection
        self.serial = serial
        self._alive = alive
        self._cause_of_death = cause_of_death
        self._finished = False
        self._silent = False
        """The batcher has sent its last message."""
        self.failure: PeerError | None = None
        """The error of another rank after the last exchange. Final once `over` is set."""
        self.left = threading.Event()
        """Set when this rank's trainer needs no more steps."""
        self._reason: str | None = None
        self.broken: LoaderDiedError | None = None
        """Why no message of the pass can be passed on any more. Read by the trainer."""
        self.over = threading.Event()
        """Set once the exchange passes no more messages on."""

    def leave(self, reason: str | None = None) -> None:
        """Notes that this rank's trainer needs no more steps, because of `reason` if something went
        wrong that the batcher cannot report to the other ranks."""
        self._reason = reason
        self.left.set()

    def end(self) -> None:
        """Notes that the exchange passes no more messages on. Where the trainer has left, this
        drops what the batcher still sends, and tells it that no answer will come: otherwise both
        sides could wait on a full pipe. Closing the pipe does not help, because forked processes
        have copies of this end."""
        self.over.set()
        if self.connection is None or (self._silent and not self.left.is_set()):
            return
        if self.broken is not None:  # where a message was read in part, the next cannot be found
            self.connection.close()
            return
        self.left.wait()  # where the exchange failed
        deadline = time.monotonic() + _DRAIN_LIMIT
        try:
            while not self._silent and self._alive() and time.monotonic() < deadline:
                if self.connection.poll(0.1):
                    serial, message = self.connection.recv()
                    self._silent = serial == self.serial and not message
            self.connection.send((self.serial, []))
        except BaseException:  # its other end is closed, or memory has run out, say
            self.connection.close()

    def message(self, timeout: float) -> bytes | None:
        """The batcher's next message; None if there is none within `timeout` seconds; empty if none
        will follow, because the batcher has finished or the trainer has left."""
        deadline = time.monotonic() + timeout
        while self.connection is not None and not (self._finished or self.left.is_set()):
            alive = self._alive()
            remaining = max(deadline - time.monotonic(), 0) if alive else 0
            try:
                if not self.connection.poll(remaining):
                    if alive:
                        return None
                    raise EOFError
                received: tuple[int, bytes] = self.connection.recv()
                serial, message = received
            except (EOFError, OSError) as error:
                if self.left.is_set():
                    break
                if self.connection.closed:  # as the pass before was broken
                    self._break(error)
                    break
                self._finished = True
                return abort_message(self._cause_of_death())
            except BaseException as error:
                self._break(error)
                break
            if serial == self.serial:
                self._silent = not message
                if self._silent and self._reason is not None:
                    break  # the batcher abandons the pass, and does not know why
                self._finished = self._silent
                return message
        if self._reason is not None and not self._finished:
            self._finished = True
            return abort_message(self._reason)
        return b""

    def note(self, messages: Sequence[bytes]) -> None:
        """Checks messages for an error of another rank, once the batcher is done and reads none."""
        try:
            check_no_abort(messages)
        except PeerError as error:
            self.failure = self.failure or error

    def reply(self, messages: Sequence[bytes]) -> None:
        """Sends all ranks' messages to the batcher."""
        if self.left.is_set() or self.connection is None:
            return  # a large message that is not read could block
        try:
            self.connection.send((self.serial, list(messages)))
        except OSError:
            pass  # the batcher is gone; its reader will report it
        except BaseException as error:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        """Tells the other ranks, in place of the next message, that this rank lost one, for example
        because memory ran out."""
        self.broken = LoaderDiedError(
            f"a message between the batcher and the other ranks was lost: {described(error)}"
        )
        self.leave(described(self.broken))
