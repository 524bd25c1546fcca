"""A tick as bytes: whether a rank has a message yet, what its trainer does, and the message.

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
from collections.abc import Sequence
from typing import NamedTuple

from evenstep.errors import DamagedMessageError

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


def encode(tick: Tick, message: bytes) -> bytes:
    """The tick and its whole message; the first `FRAME` bytes go first."""
    return _HEAD.pack(_MARK, *tick) + message


def decode(frames: Sequence[bytes]) -> list[Tick]:
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
