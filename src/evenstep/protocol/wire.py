"""Hello, proposal, receipt and abort as bytes; the columns of a receipt are packed by `receipts`.

Every message begins with its kind and the number of its round, so that ranks which are out of step
notice at once instead of misreading each other.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from evenstep.errors import MismatchError, PeerError

VERSION = 3

HELLO, PROPOSAL, RECEIPT, _ABORT = b"H", b"P", b"R", b"A"
_NAMES = {HELLO: "hello", PROPOSAL: "proposal", RECEIPT: "receipt"}

_HEAD = struct.Struct("<cI")  # kind of message, round
_HELLO = struct.Struct("<q")  # samples left; then what is compared
_PROPOSAL = struct.Struct("<??qqqq")
_RECEIPT = struct.Struct("<qI")  # samples left, bytes of the receipt; then perhaps a lent sample


class ProposalHead(NamedTuple):
    """The part of a proposal that every policy has; the policy's own message follows."""

    finished: bool
    """This rank has emitted all its samples."""
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


def encode(kind: bytes, round: int, body: bytes) -> bytes:
    """A message; `open_all` checks and removes its head."""
    return _HEAD.pack(kind, round) + body


def encode_hello(compared: Mapping[str, Any], left: int) -> bytes:
    """A rank's first message.

    Args:
        compared: what must be equal on all ranks, by the name that an error uses.
        left: samples of this rank in the epoch; -1 if unknown.
    """
    hello = {"protocol": VERSION, **compared}
    return _HELLO.pack(left) + json.dumps(hello, sort_keys=True).encode()


def compare_hellos(bodies: Sequence[memoryview]) -> list[int]:
    """Every rank's samples left, after checking that all ranks were built alike.

    Raises:
        MismatchError: they were not.
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
    """Replaces any message of a rank that has failed. All other ranks raise `PeerError`."""
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
        # Hellos of different rounds pass: `compare_hellos` explains the difference better.
        if sent != kind or (number != round and kind != HELLO):
            raise MismatchError(
                f"rank {sender} sent a {_NAMES.get(sent, sent)} of round {number} where rank "
                f"{rank} is at the {_NAMES[kind]} of round {round}; every rank must use its "
                "loaders in the same order"
            )
    return [memoryview(m)[_HEAD.size :] for m in messages]
