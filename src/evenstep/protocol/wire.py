"""Every message between ranks as bytes: a head, and a body that `bodies` takes apart.

The head says which version of the protocol a message is of, what kind it is, of which rank and
round, how long it is, and a checksum of all the rest. A rank that gets a damaged message says so to
all others.

The first three bytes are the same in every version: so ranks of different versions can say so.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from evenstep.errors import DamagedMessageError, MismatchError, PeerError

MAGIC = b"ev"
VERSION = 8

HELLO, PROPOSAL, RECEIPT, LEARNED, ABORT = b"H", b"P", b"R", b"L", b"A"
NAMES = {
    HELLO: "hello",
    PROPOSAL: "proposal",
    RECEIPT: "receipt",
    LEARNED: "account of the job",
    ABORT: "abort",
}

HEAD_LAYOUT = struct.Struct("<2sBcIIII")
_UNSUMMED = slice(4, 8)  # the checksum itself
_VERSION = bytes([VERSION])
_ABORT_START = MAGIC + _VERSION + ABORT

Found = TypeVar("Found")


class Exchanged:
    """What the messages say is the same on all ranks. So where one process has several ranks, as a
    simulation does, they share this object, and it is worked out once."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        """
        Args:
            messages: in rank order.
        """
        self.messages = messages
        self._found: dict[Callable[..., Any], Any] = {}

    def once(self, work: Callable[..., Found], *given: Any, **options: Any) -> Found:
        """``work(*given, **options)``, which must be the same on all ranks."""
        if work not in self._found:
            self._found[work] = work(*given, **options)
        found: Found = self._found[work]
        return found


class Head(NamedTuple):
    """The first bytes of every message."""

    magic: bytes
    """"ev", in every version."""
    version: int
    """Of the protocol. What follows may be something else in another version."""
    kind: bytes
    """H hello, P proposal, R receipt, L what was learned of the job, A abort."""
    checksum: int
    """CRC-32 (zlib) of the whole message without these four bytes."""
    length: int
    """Bytes of the whole message, the head included."""
    rank: int
    """Rank of the sender; 0 in an abort."""
    round: int
    """Rounds of the epoch before this one; 0 in an abort."""


def damaged(sender: int, kind: bytes, round: int, what: str) -> DamagedMessageError:
    """The error for a message that cannot be what its rank sent.

    Args:
        kind: of the message that was due.
        what: is wrong with it.
    """
    return DamagedMessageError(
        f"rank {sender} sent a damaged {NAMES[kind]} of round {round}: {what}; start the job again "
        "from its last checkpoint, and if it happens again, check memory and network of that "
        "rank's host, and that all ranks run the same versions of evenstep and of the policy"
    )


def encode(kind: bytes, body: bytes, *, rank: int, round: int) -> bytes:
    """A message; `open_all` checks and removes its head."""
    length = HEAD_LAYOUT.size + len(body)
    bare = HEAD_LAYOUT.pack(MAGIC, VERSION, kind, 0, length, rank, round) + body
    return HEAD_LAYOUT.pack(MAGIC, VERSION, kind, _checksum(bare), length, rank, round) + body


def without_suffix(message: bytes) -> tuple[bytes, bytes]:
    """A message, and what was appended to it."""
    if len(message) < HEAD_LAYOUT.size:
        return message, b""
    length = Head(*HEAD_LAYOUT.unpack_from(message)).length
    return message[:length], message[length:]


def abort_message(reason: str) -> bytes:
    """Replaces any message of a rank that has failed. All other ranks raise `PeerError`."""
    # Names of files, in what an error says, may hold bytes that are not text.
    return encode(ABORT, reason.encode(errors="backslashreplace"), rank=0, round=0)


def is_abort(message: bytes) -> bool:
    """Whether a message is an abort, or a damaged one."""
    return message.startswith(_ABORT_START)


def check_no_abort(messages: Sequence[bytes]) -> None:
    """Raises `PeerError` for the first rank whose message is an abort."""
    for rank, message in enumerate(messages):
        if not message.startswith(_ABORT_START):
            continue
        if wrong := _damage(message):
            raise damaged(rank, ABORT, 0, wrong)
        reason = message[HEAD_LAYOUT.size :].decode(errors="replace")
        raise PeerError(f"rank {rank} failed: {reason}")


def open_all(
    messages: Sequence[bytes], kind: bytes, round: int, *, rank: int, epoch: int
) -> list[memoryview]:
    """The bodies of all ranks' messages of one exchange, in rank order.

    Raises:
        PeerError: a rank sent an abort, a damaged message, or nothing because it left the epoch.
        MismatchError: a rank is in another round, at another point of it, or of another version.
    """
    check_no_abort(messages)
    for sender, message in enumerate(messages):
        if not message:
            raise PeerError(
                f"rank {sender} left epoch {epoch} early, so no further step can be made; "
                "leave the loop at the same step on every rank"
            )
        if message.startswith(MAGIC) and message[2:3] not in (b"", _VERSION):
            raise MismatchError(
                f"ranks differ in protocol: rank {rank} has version {VERSION}, rank {sender} has "
                f"version {message[2]}; install the same version of evenstep on every rank"
            )
        if wrong := _damage(message):
            raise damaged(sender, kind, round, wrong)
        _, _, sent, _, _, number, its_round = HEAD_LAYOUT.unpack_from(message)
        # Hellos of different rounds pass: `compare_hellos` explains the difference better.
        if sent != kind or (its_round != round and kind != HELLO):
            raise MismatchError(
                f"rank {sender} sent a {NAMES.get(sent, sent)} of round {its_round} where rank "
                f"{rank} is at the {NAMES[kind]} of round {round}; every rank must use its "
                "loaders in the same order"
            )
        if number != sender:
            raise damaged(sender, kind, round, f"it is that of rank {number}")
    return [memoryview(message)[HEAD_LAYOUT.size :] for message in messages]


def _checksum(message: bytes) -> int:
    return zlib.crc32(memoryview(message)[_UNSUMMED.stop :], zlib.crc32(message[: _UNSUMMED.start]))


def _damage(message: bytes) -> str:
    """What shows that a message did not arrive as it was sent; empty if nothing does."""
    if len(message) < HEAD_LAYOUT.size:
        return f"it has {len(message)} bytes, fewer than the {HEAD_LAYOUT.size} of its head"
    magic, _, _, checksum, length, _, _ = HEAD_LAYOUT.unpack_from(message)
    if magic != MAGIC:
        return f"it begins with {magic!r} instead of {MAGIC!r}"
    if length != len(message):
        return f"it has {len(message):,} bytes of {length:,}"
    if checksum != (found := _checksum(message)):
        return f"its checksum is {checksum:#010x}, that of its bytes {found:#010x}"
    return ""
