"""The bodies of hello, proposal and receipt, and which of their numbers cannot be.

A message that arrived whole may still say what is impossible, such as more samples than a window
holds: then its rank runs other code, or is wrong. It is refused like a damaged one.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Int64Array
from evenstep.cost.measured import UNMEASURED, Ratios
from evenstep.errors import MismatchError
from evenstep.protocol.wire import HELLO, PROPOSAL, RECEIPT, damaged

HELLO_LAYOUT = struct.Struct("<q")  # samples left; then what is compared, as JSON
PROPOSAL_LAYOUT = struct.Struct("<BBqqqqqqqqqq")  # then numbers of the policy
RECEIPT_LAYOUT = struct.Struct("<qI")  # samples left, bytes of totals; then totals, lent sample
_NUMBER = np.dtype("<i8")  # of a policy's message
_PROPOSAL = np.dtype([("flags", "u1", 2), ("counts", _NUMBER, 10)])  # as `PROPOSAL_LAYOUT`

MOST = 1 << 53
"""Limit of every count: float64, in which ranks compute with some, holds those below exactly."""
LONGEST = 1 << 31
"""Tokens that no sample has."""


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
    ratios: Ratios = UNMEASURED
    """On rank 0, what a pair of tokens and a patch cost from the next round on: see
    `evenstep.cost.measured`. `UNMEASURED` leaves it as it is."""


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
    ratios: Int64Array
    """[ranks, 2]"""

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
    """[ranks] totals of each rank's steps: see `evenstep.protocol.own_receipt`."""
    lent: bytes
    """A filler sample for ranks that lack one; empty if none was asked for."""


# Hello


def encode_hello(compared: Mapping[str, Any], left: int) -> bytes:
    """A rank's first message.

    Args:
        compared: what must be equal on all ranks, by the name that an error uses.
        left: samples of this rank in the epoch; -1 if unknown.
    """
    return HELLO_LAYOUT.pack(left) + json.dumps(compared, sort_keys=True).encode()


def compare_hellos(bodies: Sequence[memoryview]) -> Int64Array:
    """[ranks] samples left, after checking that all ranks were built alike.

    Raises:
        DamagedMessageError: what a rank sent is not a hello.
        MismatchError: ranks were built differently.
    """
    left = np.zeros(len(bodies), np.int64)
    for rank, body in enumerate(bodies):
        if len(body) < HELLO_LAYOUT.size:
            raise damaged(rank, HELLO, 0, f"its body has {len(body)} bytes")
        (left[rank],) = HELLO_LAYOUT.unpack_from(body)
        _check_left(rank, HELLO, 0, int(left[rank]))
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
        raise damaged(rank, HELLO, 0, f"what it compares is not JSON ({error})") from error
    if not isinstance(hello, dict):
        raise damaged(rank, HELLO, 0, "what it compares is not a JSON object")
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
    return PROPOSAL_LAYOUT.pack(*head[:-1], *head.ratios) + message.astype(_NUMBER).tobytes()


def decode_proposals(
    bodies: Sequence[memoryview],
    *,
    round: int,
    window: int,
    longest: int | None,
) -> tuple[ProposalHeads, Int64Array]:
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
    sizes = np.array([len(body) for body in bodies]) - PROPOSAL_LAYOUT.size
    if (cut := (sizes < 0) | (sizes % _NUMBER.itemsize > 0)).any():
        rank = int(cut.argmax())
        raise damaged(rank, PROPOSAL, round, f"its body has {len(bodies[rank])} bytes")
    sizes //= _NUMBER.itemsize
    sent = b"".join([body[: PROPOSAL_LAYOUT.size] for body in bodies])
    records = np.frombuffer(sent, _PROPOSAL)
    flags, counts = records["flags"], records["counts"].astype(np.int64)
    finished, lacks = flags.astype(np.bool_).T
    columns = [*counts[:, :-2].T, counts[:, -2:]]
    heads = ProposalHeads(finished, lacks, *columns)
    _check_heads(heads, flags, window, longest or LONGEST, round)
    if (given := finished & (sizes > 0)).any():
        rank = int(given.argmax())
        raise damaged(rank, PROPOSAL, round, f"{sizes[rank]} numbers of no policy")
    first = int(finished.argmin())  # that proposes
    if (others := ~finished & (sizes != sizes[first])).any():
        rank = int(others.argmax())
        what = f"it has {sizes[rank]} numbers of the policy, and that of rank {first} has "
        raise damaged(rank, PROPOSAL, round, what + f"{sizes[first]}")
    numbers = np.zeros((len(bodies), int(sizes.max())), np.int64)
    sent = b"".join([body[PROPOSAL_LAYOUT.size :] for body in bodies])
    numbers[np.arange(numbers.shape[1]) < sizes[:, None]] = np.frombuffer(sent, _NUMBER)
    return heads, numbers


def _check_heads(
    heads: ProposalHeads, flags: npt.NDArray[np.uint8], window: int, longest: int, round: int
) -> None:
    """Raises `DamagedMessageError` for a proposal that says what cannot be.

    Args:
        flags: [ranks, 2] `finished` and `lacks_filler_sample` as they were sent.
    """
    finished, lacks = heads.finished, heads.lacks_filler_sample
    samples, supervised, tokens, room = heads.samples, heads.supervised, heads.tokens, heads.room
    first, unshifted, ratios = heads.first, heads.unshifted, heads.ratios
    own, fits = heads.longest, heads.fits
    most = np.where(samples <= MOST // longest, samples * longest, MOST)
    checks: list[tuple[BoolArray, Callable[[int], str]]] = [
        (
            flags.max(axis=1) <= 1,
            lambda r: f"its flags are {flags[r, 0]} and {flags[r, 1]}",
        ),
        (
            (finished == (samples == 0)) & (lacks <= finished),
            lambda r: f"{samples[r]:,} samples, finished={finished[r]}, lacks={lacks[r]}",
        ),
        (
            (samples >= 0) & (samples <= window),
            lambda r: f"{samples[r]:,} samples in a window of at most {window:,}",
        ),
        (
            (samples <= tokens) & (tokens <= most),
            lambda r: f"{tokens[r]:,} tokens in {samples[r]:,} samples of 1 to {longest:,}",
        ),
        (
            (supervised >= 0) & (supervised < MOST),
            lambda r: f"{supervised[r]:,} supervised tokens",
        ),
        (
            (first >= 0) & (first <= samples) & (unshifted >= 0) & (unshifted <= samples),
            lambda r: f"labels of {first[r]:,} and {unshifted[r]:,} samples show how they are read",
        ),
        ((room >= 0) & (room < MOST), lambda r: f"room for {room[r]:,} samples"),
        (
            (own >= (samples > 0)) & (own <= longest),
            lambda r: f"a longest sample of {own[r]:,} tokens, where {longest:,} are possible",
        ),
        ((fits >= 0) & (fits < MOST), lambda r: f"groups of {fits[r]:,} tokens that fit"),
        (
            (ratios.min(axis=1) >= 0) & (ratios.max(axis=1) < MOST),
            lambda r: f"pairs of tokens and patches that cost {ratios[r].tolist()}",
        ),
    ]
    for possible, said in checks:
        if not possible.all():
            rank = int(possible.argmin())
            raise damaged(rank, PROPOSAL, round, said(rank))


# Receipt


def encode_receipt(left: int, totals: bytes, lent: bytes) -> bytes:
    return RECEIPT_LAYOUT.pack(left, len(totals)) + totals + lent


def decode_receipts(
    bodies: Sequence[memoryview], *, round: int, lender: int | None
) -> ReceiptBodies:
    """All ranks' receipts, of which `RoundTotals.decode` checks the totals.

    Args:
        lender: the rank that lends a sample in this round, if one was asked for.

    Raises:
        DamagedMessageError: one is cut off, or says what cannot be.
    """
    lefts, totals, lent = np.zeros(len(bodies), np.int64), [], b""
    for rank, body in enumerate(bodies):
        if len(body) < RECEIPT_LAYOUT.size:
            raise damaged(rank, RECEIPT, round, f"its body has {len(body)} bytes")
        left, length = RECEIPT_LAYOUT.unpack_from(body)
        _check_left(rank, RECEIPT, round, left)
        end = RECEIPT_LAYOUT.size + length
        if len(body) < end or (len(body) > end and rank != lender):
            what = f"its body has {len(body):,} bytes, and {end:,} without a lent sample"
            raise damaged(rank, RECEIPT, round, what)
        lefts[rank] = left
        totals.append(body[RECEIPT_LAYOUT.size : end])
        lent = lent or bytes(body[end:])
    return ReceiptBodies(lefts, totals, lent)
