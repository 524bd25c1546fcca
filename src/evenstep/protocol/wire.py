"""The messages that ranks send each other, as bytes.

Every message begins with its kind and the number of the round it belongs to, so that ranks which
have lost step with each other find out at once instead of misreading one another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evenstep.errors import MismatchError, PeerError

__all__ = [
    "HELLO",
    "PROPOSAL",
    "RECEIPT",
    "ProposalHead",
    "ReceiptBody",
    "abort_message",
    "check_no_abort",
    "compare_hellos",
    "decode_proposal",
    "decode_receipt",
    "encode",
    "encode_hello",
    "encode_proposal",
    "encode_receipt",
    "is_abort",
    "open_all",
]

VERSION = 2

HELLO, PROPOSAL, RECEIPT, _ABORT = b"H", b"P", b"R", b"A"

_HEAD = struct.Struct("<cI")  # kind of message, round
_HELLO = struct.Struct("<q")  # samples left; then what is compared
_PROPOSAL = struct.Struct("<??qq")
_RECEIPT = struct.Struct("<qI")  # samples left, bytes of the receipt; then perhaps a lent sample


class ProposalHead(NamedTuple):
    """What every proposal says besides the policy's own numbers."""

    finished: bool
    """This rank has emitted all its samples."""
    lacks_spare: bool
    """It has finished, and has no sample to fill steps with."""
    samples: int
    """In its window."""
    supervised: int
    """Supervised tokens in its window."""


class ReceiptBody(NamedTuple):
    """What every receipt says besides the steps' totals."""

    left: int
    """Samples that the rank will still plan in this epoch after the round; -1 if not known."""
    totals: memoryview
    """See `evenstep.protocol.receipts`."""
    lent: bytes
    """A sample for ranks that lack one; empty if none was asked for."""


def encode(kind: bytes, round: int, body: bytes) -> bytes:
    return _HEAD.pack(kind, round) + body


def encode_hello(compared: Mapping[str, Any], left: int) -> bytes:
    """
    Args:
        compared: what must be equal on all ranks, by the name an error gives it.
        left: samples of this rank's epoch; -1 if not known.
    """
    hello = {"protocol": VERSION, **compared}
    return _HELLO.pack(left) + json.dumps(hello, sort_keys=True).encode()


def compare_hellos(bodies: Sequence[memoryview]) -> list[int]:
    """Every rank's samples left, once all have been found to be built alike.

    Raises:
        MismatchError: they are not.
    """
    texts = [bytes(body[_HELLO.size :]) for body in bodies]
    different = sorted({0, *(rank for rank, text in enumerate(texts) if text != texts[0])})
    hellos = {rank: json.loads(texts[rank]) for rank in different}
    for key in sorted({key for hello in hellos.values() for key in hello}):
        mine = hellos[0].get(key)
        for rank, hello in hellos.items():
            if hello.get(key) != mine:
                raise MismatchError(
                    f"ranks differ in {key}: rank 0 has {mine!r}, rank {rank} has "
                    f"{hello.get(key)!r}; build the loader with equal arguments on every rank, and "
                    "load the states of one checkpoint"
                )
    return [int(_HELLO.unpack_from(body)[0]) for body in bodies]


def encode_proposal(head: ProposalHead, message: bytes) -> bytes:
    return _PROPOSAL.pack(*head) + message


def decode_proposal(body: memoryview) -> tuple[ProposalHead, memoryview]:
    return ProposalHead(*_PROPOSAL.unpack_from(body)), body[_PROPOSAL.size :]


def encode_receipt(left: int, totals: bytes, lent: bytes) -> bytes:
    return _RECEIPT.pack(left, len(totals)) + totals + lent


def decode_receipt(body: memoryview) -> ReceiptBody:
    left, length = _RECEIPT.unpack_from(body)
    end = _RECEIPT.size + length
    return ReceiptBody(left, body[_RECEIPT.size : end], bytes(body[end:]))


def abort_message(reason: str) -> bytes:
    """Sent in place of any message by a rank that has failed. All others raise `PeerError`."""
    return encode(_ABORT, 0, reason.encode())


def is_abort(message: bytes) -> bool:
    return message[:1] == _ABORT


def check_no_abort(messages: Sequence[bytes]) -> None:
    """Raises `PeerError` for the first rank whose message is an abort."""
    for rank, message in enumerate(messages):
        if is_abort(message):
            raise PeerError(f"rank {rank} failed: {message[_HEAD.size :].decode()}")


def open_all(
    messages: Sequence[bytes], kind: bytes, round: int, *, rank: int, epoch: int
) -> list[memoryview]:
    """The bodies of all ranks' messages of one exchange.

    Raises:
        PeerError: a rank sent an abort, or nothing because it left the epoch.
        MismatchError: a rank is in another round, or at another point of it.
    """
    check_no_abort(messages)
    heads = [_HEAD.unpack_from(m) if m else (b"", 0) for m in messages]
    for sender, (sent, number) in enumerate(heads):
        if not sent:
            raise PeerError(
                f"rank {sender} left epoch {epoch} early, so no further step can be made; "
                "leave the loop at the same step on every rank"
            )
        # Hellos may tell of different rounds: `compare_hellos` says so better.
        if sent != kind or (number != round and kind != HELLO):
            raise MismatchError(
                f"rank {sender} is at {sent!r} of round {number} where rank {rank} is at "
                f"{kind!r} of round {round}; every rank must use its loaders in the same order"
            )
    return [memoryview(m)[_HEAD.size :] for m in messages]
