"""The bodies of hello, proposal and receipt as bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.cost.vision_language import UNMEASURED, Ratios
from evenstep.errors import MismatchError
from evenstep.protocol.slow_ranks import UNTIMED, OwnPace

_HELLO = struct.Struct("<q")  # samples left; then what is compared, as JSON
_RECEIPT = struct.Struct("<qI")  # samples left, bytes of totals; then totals, lent sample
_NUMBER = np.dtype("<i8")  # of a proposal


class ProposalHead(NamedTuple):
    """The part of a proposal that every policy has; the policy's own message follows."""

    finished: bool
    """Its window is empty: nothing is left, or nothing good of what was dealt to it."""
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
    first: int = 0
    """Samples of which one more label is supervised if models read every label."""
    unshifted: int = 0
    """Samples whose labels prove that they do."""
    longest: int = 0
    """Tokens of the longest sample in its window."""
    fits: int = 0
    """Tokens of a group that it finds to fit: see `evenstep.plan.fit`. 0 if it does not say."""
    too_long: int = 0
    """See `RoundStart.too_long`."""
    ratios: Ratios = UNMEASURED
    """On rank 0, what a pair of tokens and a patch cost from the next round on: see
    `evenstep.cost.vision_language`. `UNMEASURED` leaves it as it is."""
    pace: OwnPace = UNTIMED


@dataclass(frozen=True)
class ProposalHeads:
    """The heads of all ranks' proposals. Arrays of shape [ranks]; see `ProposalHead`."""

    finished: BoolArray
    lacks_filler_sample: BoolArray
    samples: Int64Array
    supervised: Int64Array
    tokens: Int64Array
    room: Int64Array
    first: Int64Array
    unshifted: Int64Array
    longest: Int64Array
    fits: Int64Array
    too_long: Int64Array
    ratios: Int64Array
    """[ranks, 2]"""
    pace: Int64Array
    """[ranks, 4]"""

    @property
    def labels(self) -> str | None:
        """How models read labels, by what all windows show; None where none depends on it."""
        if self.unshifted.any():
            return "every"
        return "causal" if self.first.any() else None

    def read_labels(self, labels: str | None) -> ProposalHeads:
        """Heads whose supervised tokens are counted as models read labels."""
        if labels != "every":
            return self
        return replace(
            self, supervised=self.supervised + self.first, first=np.zeros_like(self.first)
        )


@dataclass(frozen=True)
class ReceiptBodies:
    """All ranks' receipts, taken apart."""

    left: Int64Array
    """[ranks] samples that each will still plan in this epoch after the round; -1 if unknown."""
    totals: list[memoryview]
    """[ranks] totals of each rank's steps: see `Receipt.encode`."""
    lent: bytes
    """A filler sample for ranks that lack one; empty if none was asked for."""


# Hello


def encode_hello(compared: Mapping[str, Any], left: int) -> bytes:
    """A rank's first message.

    Args:
        compared: what must be equal on all ranks, by the name that an error uses.
        left: samples of this rank in the epoch; -1 if unknown.
    """
    return _HELLO.pack(left) + json.dumps(compared, sort_keys=True).encode()


def compare_hellos(bodies: Sequence[memoryview]) -> Int64Array:
    """[ranks] samples left, after checking that all ranks were built alike.

    Raises:
        MismatchError: ranks were built differently.
    """
    left = [_HELLO.unpack_from(body)[0] for body in bodies]
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
    return np.array(left, np.int64)


# Proposal


def encode_proposal(head: ProposalHead, message: Int64Array) -> bytes:
    """
    Args:
        message: [k] of the policy; none of a rank that has finished.
    """
    return np.array([*head[:-2], *head.ratios, *head.pace, *message.tolist()], _NUMBER).tobytes()


def decode_proposals(bodies: Sequence[memoryview]) -> tuple[ProposalHeads, Int64Array]:
    """All ranks' proposals.

    Returns:
        Their heads, and [ranks, k] the policy's messages: zeros for a rank that has finished.
    """
    sizes = np.array([len(body) for body in bodies]) // _NUMBER.itemsize
    table = np.zeros((len(bodies), int(sizes.max())), np.int64)
    table[np.arange(table.shape[1]) < sizes[:, None]] = np.frombuffer(b"".join(bodies), _NUMBER)
    numbers = len(ProposalHead._fields) - 2
    ratios, pace, message = np.split(table[:, numbers:], (2, 2 + len(UNTIMED)), axis=1)
    finished, lacks = table[:, :2].T.astype(np.bool_)
    columns = [*table[:, 2:numbers].T, ratios, pace]
    return ProposalHeads(finished, lacks, *columns), message


# Receipt


def encode_receipt(left: int, totals: bytes, lent: bytes) -> bytes:
    return _RECEIPT.pack(left, len(totals)) + totals + lent


def decode_receipts(bodies: Sequence[memoryview]) -> ReceiptBodies:
    """All ranks' receipts."""
    lefts, totals, lent = [], [], b""
    for body in bodies:
        left, length = _RECEIPT.unpack_from(body)
        end = _RECEIPT.size + length
        lefts.append(left)
        totals.append(body[_RECEIPT.size : end])
        lent = lent or bytes(body[end:])
    return ReceiptBodies(np.array(lefts, np.int64), totals, lent)
