"""Every message between ranks as bytes, and all that is checked of one before it is believed.

A message is a head and a body. The head says which version of the protocol it is of, what kind it
is, of which rank and round, how long it is, and a checksum of all the rest. All ranks see the same
bytes, so a damaged message is the same error on all of them. One that is whole and says what cannot
be, such as more samples than a window holds, is refused in the same way.

The first three bytes are the same in every version: so ranks of different versions can say so.
`docs/protocol.md` has all of this as tables, made from this file.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import DamagedMessageError, MismatchError, PeerError

MAGIC = b"ev"
VERSION = 4

HELLO, PROPOSAL, RECEIPT, ABORT = b"H", b"P", b"R", b"A"
NAMES = {HELLO: "hello", PROPOSAL: "proposal", RECEIPT: "receipt", ABORT: "abort"}

HEAD_LAYOUT = struct.Struct("<2sBcIIII")
HELLO_LAYOUT = struct.Struct("<q")  # samples left; then what is compared, as JSON
PROPOSAL_LAYOUT = struct.Struct("<BBqqqq")
RECEIPT_LAYOUT = struct.Struct("<qI")  # samples left, bytes of totals; then perhaps a lent sample
_NUMBER = np.dtype("<i8")  # of a policy's message

_UNSUMMED = slice(4, 8)  # the checksum itself
MOST = 1 << 53
"""Limit of every count: float64, in which ranks compute with some, holds those below exactly."""
LONGEST = 1 << 31
"""Tokens that no sample has."""


class Head(NamedTuple):
    """The first bytes of every message."""

    magic: bytes
    """"ev", in every version."""
    version: int
    """Of the protocol. What follows may be something else in another version."""
    kind: bytes
    """H hello, P proposal, R receipt, A abort."""
    checksum: int
    """CRC-32 (zlib) of the whole message without these four bytes."""
    length: int
    """Bytes of the whole message, the head included."""
    rank: int
    """Rank of the sender; 0 in an abort."""
    round: int
    """Rounds of the epoch before this one; 0 in an abort."""


class ProposalHead(NamedTuple):
    """The part of a proposal that every policy has; the policy's own message follows."""

    finished: bool
    """This rank has no samples, and will have none: its window is empty."""
    lacks_filler_sample: bool
    """This rank has finished, and has no sample to run zero-loss steps with."""
    samples: int
    """Samples in its window."""
    supervised: int
    """Supervised tokens in its window."""
    tokens: int
    """Tokens in its window."""
    room: int
    """Samples that it has memory for in a window; 0 if it does not say."""


class ReceiptBody(NamedTuple):
    """One rank's receipt, taken apart."""

    left: int
    """Samples that the rank will still plan in this epoch after the round; -1 if unknown."""
    totals: memoryview
    """Totals of the rank's steps: see `evenstep.protocol.receipts`."""
    lent: bytes
    """A filler sample for ranks that lack one; empty if none was asked for."""


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


# Whole messages


def encode(kind: bytes, body: bytes, *, rank: int, round: int) -> bytes:
    """A message; `open_all` checks and removes its head."""
    length = HEAD_LAYOUT.size + len(body)
    bare = HEAD_LAYOUT.pack(MAGIC, VERSION, kind, 0, length, rank, round) + body
    return HEAD_LAYOUT.pack(MAGIC, VERSION, kind, _checksum(bare), length, rank, round) + body


def abort_message(reason: str) -> bytes:
    """Replaces any message of a rank that has failed. All other ranks raise `PeerError`."""
    # Names of files, in what an error says, may hold bytes that are no text.
    return encode(ABORT, reason.encode(errors="backslashreplace"), rank=0, round=0)


def is_abort(message: bytes) -> bool:
    """Whether a message is an abort, or a damaged one."""
    return message[:4] == MAGIC + bytes([VERSION]) + ABORT


def check_no_abort(messages: Sequence[bytes]) -> None:
    """Raises `PeerError` for the first rank whose message is an abort."""
    for rank, message in enumerate(messages):
        if not is_abort(message):
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
        if message[:2] == MAGIC and message[2:3] not in (b"", bytes([VERSION])):
            raise MismatchError(
                f"ranks differ in protocol: rank {rank} has version {VERSION}, rank {sender} has "
                f"version {message[2]}; install the same version of evenstep on every rank"
            )
        if wrong := _damage(message):
            raise damaged(sender, kind, round, wrong)
        head = Head._make(HEAD_LAYOUT.unpack_from(message))
        # Hellos of different rounds pass: `compare_hellos` explains the difference better.
        if head.kind != kind or (head.round != round and kind != HELLO):
            raise MismatchError(
                f"rank {sender} sent a {NAMES.get(head.kind, head.kind)} of round {head.round} "
                f"where rank {rank} is at the {NAMES[kind]} of round {round}; every rank must use "
                "its loaders in the same order"
            )
        if head.rank != sender:
            raise damaged(sender, kind, round, f"it is that of rank {head.rank}")
    return [memoryview(message)[HEAD_LAYOUT.size :] for message in messages]


def _checksum(message: bytes) -> int:
    view = memoryview(message)
    return zlib.crc32(view[_UNSUMMED.stop :], zlib.crc32(view[: _UNSUMMED.start]))


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


# Hello


def encode_hello(compared: Mapping[str, Any], left: int) -> bytes:
    """A rank's first message.

    Args:
        compared: what must be equal on all ranks, by the name that an error uses.
        left: samples of this rank in the epoch; -1 if unknown.
    """
    return HELLO_LAYOUT.pack(left) + json.dumps(compared, sort_keys=True).encode()


def compare_hellos(bodies: Sequence[memoryview]) -> list[int]:
    """Every rank's samples left, after checking that all ranks were built alike.

    Raises:
        DamagedMessageError: what a rank sent is no hello.
        MismatchError: ranks were built differently.
    """
    left = []
    for rank, body in enumerate(bodies):
        if len(body) < HELLO_LAYOUT.size:
            raise damaged(rank, HELLO, 0, f"its body has {len(body)} bytes")
        left.append(int(HELLO_LAYOUT.unpack_from(body)[0]))
        _check_left(rank, HELLO, 0, left[-1])
    texts = [bytes(body[HELLO_LAYOUT.size :]) for body in bodies]
    different = sorted({0, *(rank for rank, text in enumerate(texts) if text != texts[0])})
    hellos = {rank: _parsed(rank, texts[rank]) for rank in different}
    for key in sorted({key for hello in hellos.values() for key in hello}):
        mine = hellos[0].get(key)
        for rank, hello in hellos.items():
            if hello.get(key) != mine:
                raise MismatchError(
                    f"ranks differ in {key}: rank 0 has {mine!r}, rank {rank} has "
                    f"{hello.get(key)!r}; build the loader with equal arguments on every rank, and "
                    "load the states of one checkpoint"
                )
    return left


def _parsed(rank: int, text: bytes) -> dict[str, Any]:
    try:
        hello = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise damaged(rank, HELLO, 0, f"what it compares is no JSON ({error})") from error
    if not isinstance(hello, dict):
        raise damaged(rank, HELLO, 0, "what it compares is no JSON object")
    return hello


def _check_left(rank: int, kind: bytes, round: int, left: int) -> None:
    if not -1 <= left < MOST:
        raise damaged(rank, kind, round, f"{left:,} samples left")


# Proposal


def encode_proposal(head: ProposalHead, message: Int64Array) -> bytes:
    """
    Args:
        message: [k] of the policy; none of a rank that has finished.
    """
    return PROPOSAL_LAYOUT.pack(*head) + message.astype(_NUMBER).tobytes()


def decode_proposals(
    bodies: Sequence[memoryview], *, round: int, window: int, longest: int | None
) -> tuple[list[ProposalHead], Int64Array]:
    """All ranks' proposals.

    Args:
        window: samples that a window may hold in this round.
        longest: tokens that a sample may have; None for no limit of the policy's.

    Returns:
        Their heads, and [ranks, k] the policy's messages: zeros for a rank that has finished.

    Raises:
        DamagedMessageError: one is cut off, says what cannot be, or has not k numbers like the
            others.
    """
    heads, width = [], None
    for rank, body in enumerate(bodies):
        size = len(body) - PROPOSAL_LAYOUT.size
        if size < 0 or size % _NUMBER.itemsize:
            raise damaged(rank, PROPOSAL, round, f"its body has {len(body)} bytes")
        finished, lacks, *counts = PROPOSAL_LAYOUT.unpack_from(body)
        if max(finished, lacks) > 1:
            raise damaged(rank, PROPOSAL, round, f"its flags are {finished} and {lacks}")
        head = ProposalHead(bool(finished), bool(lacks), *counts)
        if wrong := _impossible(head, window, longest or LONGEST):
            raise damaged(rank, PROPOSAL, round, wrong)
        heads.append(head)
        # Equally many numbers from all, but none from a rank that has finished.
        width = size if width is None and not head.finished else width
        if size != (0 if head.finished else width):
            what = f"it has {size // _NUMBER.itemsize} numbers of the policy"
            if not head.finished:
                what += f", and the first rank's has {(width or 0) // _NUMBER.itemsize}"
            raise damaged(rank, PROPOSAL, round, what)
    active = [rank for rank, head in enumerate(heads) if not head.finished]
    numbers = np.zeros((len(bodies), (width or 0) // _NUMBER.itemsize), np.int64)
    sent = b"".join([bodies[rank][PROPOSAL_LAYOUT.size :] for rank in active])
    numbers[active] = np.frombuffer(sent, _NUMBER).reshape(len(active), numbers.shape[1])
    return heads, numbers


def _impossible(head: ProposalHead, window: int, longest: int) -> str:
    """What a proposal says that cannot be; empty if nothing."""
    finished, lacks, samples, supervised, tokens, room = head
    if finished != (samples == 0) or lacks > finished:
        return f"{samples:,} samples, {finished=}, {lacks=}"
    if not 0 <= samples <= window:
        return f"{samples:,} samples in a window of at most {window:,}"
    if not samples <= tokens <= min(samples * longest, MOST):
        return f"{tokens:,} tokens in {samples:,} samples of 1 to {longest:,}"
    if not 0 <= supervised <= tokens:
        return f"{supervised:,} supervised tokens of {tokens:,}"
    if not 0 <= room < MOST:
        return f"room for {room:,} samples"
    return ""


# Receipt


def encode_receipt(left: int, totals: bytes, lent: bytes) -> bytes:
    return RECEIPT_LAYOUT.pack(left, len(totals)) + totals + lent


def decode_receipts(
    bodies: Sequence[memoryview], *, round: int, lender: int | None
) -> list[ReceiptBody]:
    """All ranks' receipts, of which `RoundTotals.decode` checks the totals.

    Args:
        lender: the rank that lends a sample in this round, if one was asked for.

    Raises:
        DamagedMessageError: one is cut off, or says what cannot be.
    """
    receipts = []
    for rank, body in enumerate(bodies):
        if len(body) < RECEIPT_LAYOUT.size:
            raise damaged(rank, RECEIPT, round, f"its body has {len(body)} bytes")
        left, length = RECEIPT_LAYOUT.unpack_from(body)
        _check_left(rank, RECEIPT, round, left)
        end = RECEIPT_LAYOUT.size + length
        if len(body) < end or (len(body) > end and rank != lender):
            what = f"its body has {len(body):,} bytes, and {end:,} without a lent sample"
            raise damaged(rank, RECEIPT, round, what)
        receipts.append(ReceiptBody(left, body[RECEIPT_LAYOUT.size : end], bytes(body[end:])))
    return receipts
