"""What one rank does each round, for any transport (ODB, App. C and E).

Rules of this file
- Everything that decides what happens next lives here, and nothing else does: no I/O, no clock, no
  threads. Bytes go out, everybody's bytes come in.
- Every rank takes part in every exchange, unconditionally (Lemma 3): a rank that has nothing left,
  or has failed, still sends a message. So no rank can wait for one that is not coming.
- A sample is in exactly one place (Lemma 1): pending here, emitted, dropped by the policy, or left
  undelivered by a stop. This is asserted every round.

How to drive it::

    protocol = RankProtocol(...)
    while not protocol.finished:
        while protocol.wanted:                     # samples still needed before the next message
            protocol.receive(columns)              # or protocol.end_of_source()
        for step in protocol.incoming(exchange(protocol.outgoing())):
            ...                                    # step.members: arrival numbers to collate

An epoch is one hello exchange, in which ranks compare how they were built; then rounds of two
exchanges, proposals and receipts; then a last exchange of proposals in which all say that they have
finished (or one does, under ``exhausted="stop"``).
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.cost import GroupShapes
from evenstep.errors import (
    ConfigurationError,
    InvariantError,
    MismatchError,
    PeerError,
)
from evenstep.plan.groups import Groups
from evenstep.plan.policy import Policy, Proposal, Window, check_at_least
from evenstep.totals import Receipt, RoundTotals, StepTotals

__all__ = [
    "EXHAUSTED_MODES",
    "PlannedStep",
    "RankProtocol",
    "SettledRound",
    "abort_message",
    "check_no_abort",
]

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

EXHAUSTED_MODES = ("pad", "stop")

_VERSION = 1
_HEAD = struct.Struct("<cI")  # kind of message, round
_PROPOSAL = struct.Struct("<?qq")  # finished, samples in the window, supervised tokens in it
_HELLO, _PROPOSE, _RECEIPT, _ABORT = b"H", b"P", b"R", b"A"


class _Phase(enum.Enum):
    HELLO = enum.auto()
    FILLING = enum.auto()
    SETTLING = enum.auto()
    FINISHED = enum.auto()


@dataclass(frozen=True)
class SettledRound:
    """What the steps of one round share."""

    first_step: int
    groups: Groups
    """This rank's, of arrival numbers, in emission order; none where its steps are fillers."""
    totals: RoundTotals
    mean_supervised: Float64Array


@dataclass(slots=True, eq=False)  # not frozen: that triples what it takes to make one
class PlannedStep:
    """One step, as far as this rank is concerned: a place in the tables of its round."""

    index: int
    """Steps of this epoch before this one; the same on all ranks."""
    round: SettledRound

    @property
    def members(self) -> Int64Array:
        """[samples] arrival numbers of this rank's group; empty for a filler step."""
        groups = self.round.groups
        return groups.members if self.filler else groups.group(self.index - self.round.first_step)

    @property
    def totals(self) -> StepTotals:
        """What each rank trains on in this step."""
        return self.round.totals.step(self.index - self.round.first_step)

    @property
    def mean_supervised(self) -> Float64Array:
        """[ranks] mean supervised tokens of the samples each rank had in its window."""
        return self.round.mean_supervised

    @property
    def filler(self) -> bool:
        """True when this rank has nothing left and only keeps the others company."""
        return not len(self.round.groups)


def abort_message(reason: str) -> bytes:
    """Sent in place of any message by a rank that has failed. All others raise `PeerError`."""
    return _HEAD.pack(_ABORT, 0) + reason.encode()


def check_no_abort(messages: Sequence[bytes]) -> None:
    """Raises `PeerError` for the first rank whose message is an abort."""
    for rank, message in enumerate(messages):
        if message[:1] == _ABORT:
            raise PeerError(f"rank {rank} failed: {message[_HEAD.size :].decode()}")


class RankProtocol:
    """The state machine of one rank for one epoch. See the module docstring."""

    def __init__(
        self,
        *,
        policy: Policy,
        rank: int,
        world_size: int,
        buffer_size: int,
        exhausted: str = "pad",
        seed: int = 0,
        epoch: int = 0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Args:
            policy: the same on every rank.
            rank: this rank, from 0 to ``world_size - 1``.
            world_size: data-parallel ranks.
            buffer_size: samples a rank may hold in its window.
            exhausted: what happens when a rank has emitted all its samples before the others.
                "pad" (ODB's join mode): go on until all have; that rank gets filler steps.
                "stop" (ODB's non-join mode): the epoch ends for all; what the others still hold is
                counted in `undelivered`.
            seed: decides the order of groups, together with `epoch`.
            epoch: number of the epoch.
            options: anything else that must be equal on all ranks, such as the dataset's size.

        Raises:
            ConfigurationError: an argument is out of range.
        """
        check_at_least(1, world_size=world_size, buffer_size=buffer_size)
        check_at_least(0, rank=rank, epoch=epoch)
        if rank >= world_size:
            raise ConfigurationError(f"rank={rank} must be below world_size={world_size}")
        if exhausted not in EXHAUSTED_MODES:
            raise ConfigurationError(f"exhausted={exhausted!r} must be one of {EXHAUSTED_MODES}")
        self.policy = policy
        self.rank = rank
        self.world_size = world_size
        self.exhausted = exhausted
        self.seed = seed
        self.epoch = epoch
        self.window_size = policy.window_size(buffer_size)
        self._hello = {
            "protocol": _VERSION,
            "world size": world_size,
            "policy": f"{type(policy).__name__}{dict(policy.options())}",
            "buffer_size": buffer_size,
            "exhausted": exhausted,
            "seed": seed,
            "epoch": epoch,
            **(options or {}),
        }
        self._phase = _Phase.HELLO
        self._source_ended = False
        self._arrived: list[Int64Array] = []  # columns not yet in `_pending`
        self._pending = np.empty((3, 0), np.int64)  # a row is contiguous: planners sort along it
        self._numbers = np.empty(0, np.int64)  # arrival numbers of `_pending`, increasing
        self._ages = np.empty(0, np.int64)
        self._proposal: Proposal | None = None
        self._planned = Groups.empty()
        self._receipt = Receipt.none()
        self._mean_supervised = np.zeros(world_size)
        self.rounds = 0
        self.steps = 0
        self.received = 0
        self.emitted = 0
        self.dropped = 0
        self.undelivered = 0

    # What the driver asks

    @property
    def finished(self) -> bool:
        return self._phase is _Phase.FINISHED

    @property
    def pending(self) -> int:
        """Samples received and not yet emitted, dropped or left undelivered."""
        return self.received - self.emitted - self.dropped - self.undelivered

    @property
    def wanted(self) -> int:
        """Samples still needed before `outgoing` may be called; 0 when it may."""
        if self._phase is not _Phase.FILLING or self._source_ended:
            return 0
        return max(0, self.window_size - self.pending)

    # What the driver tells

    def receive(self, columns: Int64Array) -> range:
        """Takes samples in order of arrival.

        Args:
            columns: [samples, 3] int64: length, supervised tokens, patches. May be more than
                `wanted`: what does not fit in the window waits for a later round.

        Returns:
            The arrival numbers given to them, counted from 0.
        """
        if self._source_ended:
            raise InvariantError("samples received after the end of the source")
        self._arrived.append(np.asarray(columns, np.int64).reshape(-1, 3))
        first = self.received
        self.received += len(self._arrived[-1])
        return range(first, self.received)

    def end_of_source(self) -> None:
        """No more samples will be received this epoch."""
        self._source_ended = True

    # Exchanges

    def outgoing(self) -> bytes:
        """This rank's message for the next exchange."""
        if self._phase is _Phase.HELLO:
            return _HEAD.pack(_HELLO, 0) + json.dumps(self._hello, sort_keys=True).encode()
        if self._phase is _Phase.SETTLING:
            return _HEAD.pack(_RECEIPT, self.rounds) + self._receipt.encode()
        if self._phase is _Phase.FINISHED or self.wanted:
            raise InvariantError(f"no message is due in {self._phase} with {self.wanted} wanted")
        return _HEAD.pack(_PROPOSE, self.rounds) + self._propose()

    def incoming(self, messages: Sequence[bytes]) -> list[PlannedStep]:
        """Takes everybody's messages of one exchange, in rank order, this rank's own included.

        Returns:
            The steps that this exchange settled, in order; often none.

        Raises:
            PeerError: a rank sent an abort, or nothing because it left the epoch.
            MismatchError: ranks were built differently, or are in different rounds.
        """
        if self.finished:
            raise InvariantError("no message is expected after the end of the epoch")
        expected = {_Phase.HELLO: _HELLO, _Phase.FILLING: _PROPOSE, _Phase.SETTLING: _RECEIPT}
        bodies = self._open(messages, expected[self._phase])
        if self._phase is _Phase.HELLO:
            self._compare(bodies)
            self._phase = _Phase.FILLING
            return []
        if self._phase is _Phase.FILLING:
            self._settle(bodies)
            return []
        return self._conclude(bodies)

    def _open(self, messages: Sequence[bytes], kind: bytes) -> list[memoryview]:
        if len(messages) != self.world_size:
            raise InvariantError(f"{len(messages)} messages for world size {self.world_size}")
        check_no_abort(messages)
        heads = [_HEAD.unpack_from(m) if m else (b"", 0) for m in messages]
        for rank, (sent, number) in enumerate(heads):
            if not sent:
                raise PeerError(
                    f"rank {rank} left epoch {self.epoch} early, so no further step can be made; "
                    "leave the loop at the same step on every rank"
                )
            if sent != kind or number != self.rounds:
                raise MismatchError(
                    f"rank {rank} is at {sent!r} of round {number} where rank {self.rank} is at "
                    f"{kind!r} of round {self.rounds}; every rank must use its loaders in the same "
                    "order"
                )
        return [memoryview(m)[_HEAD.size :] for m in messages]

    def _compare(self, bodies: Sequence[memoryview]) -> None:
        hellos = [json.loads(bytes(body)) for body in bodies]
        for key in sorted({key for hello in hellos for key in hello}):
            values = [hello.get(key) for hello in hellos]
            other = next((r for r, value in enumerate(values) if value != values[0]), None)
            if other is not None:
                raise MismatchError(
                    f"ranks differ in {key}: rank 0 has {values[0]!r}, rank {other} has "
                    f"{values[other]!r}; build the loader with equal arguments on every rank"
                )

    # A round

    def _propose(self) -> bytes:
        self._gather()
        lengths, supervised, patches = self._pending[:, : self.window_size]
        if not len(lengths):
            self._proposal = None
            return _PROPOSAL.pack(True, 0, 0)
        window = Window(
            lengths=lengths,
            ages=self._ages[: self.window_size],
            patches=patches if self.policy.counts_patches else None,
            exhausted=self._source_ended and len(self._numbers) == len(lengths),
            seed=self.seed,
            epoch=self.epoch,
            round=self.rounds,
        )
        self._proposal = self.policy.propose(window)
        head = _PROPOSAL.pack(False, len(window), int(supervised.sum()))
        return head + self._proposal.message.astype("<i8").tobytes()

    def _gather(self) -> None:
        if not self._arrived:
            return
        new = np.concatenate(self._arrived)
        self._arrived.clear()
        numbers = np.arange(self.received - len(new), self.received)
        self._pending = np.concatenate([self._pending, new.T], axis=1)
        self._numbers = np.concatenate([self._numbers, numbers])
        self._ages = np.concatenate([self._ages, np.zeros(len(new), np.int64)])

    def _settle(self, bodies: Sequence[memoryview]) -> None:
        heads = [_PROPOSAL.unpack_from(body) for body in bodies]
        finished = [head[0] for head in heads]
        if all(finished) or (self.exhausted == "stop" and any(finished)):
            self._stop()
            return
        samples = np.array([head[1] for head in heads], np.float64)
        supervised = np.array([head[2] for head in heads], np.float64)
        self._mean_supervised = supervised / np.maximum(samples, 1)
        self._phase = _Phase.SETTLING
        if self._proposal is None:
            self._planned, self._receipt = Groups.empty(), Receipt.none()
            return
        messages = np.zeros((self.world_size, len(self._proposal.message)), np.int64)
        sent = [body[_PROPOSAL.size :] for body, done in zip(bodies, finished) if not done]
        messages[~np.array(finished)] = np.frombuffer(b"".join(sent), "<i8").reshape(len(sent), -1)
        plan = self.policy.settle(self._proposal, messages, self.rank)
        self._take(plan.groups, plan.dropped)

    def _take(self, groups: Groups, dropped: Int64Array) -> None:
        """Moves a plan's samples out of the buffer, and makes the receipt of them."""
        lengths, supervised, patches = self._pending[:, : self.window_size]
        count = len(lengths)
        begin, end = groups.offsets[[0, -1]].tolist()
        if begin != 0 or end != len(groups.members) or groups.sizes.min(initial=1) < 1:
            raise InvariantError(
                f"{self.policy.name} planned a group without samples, or samples without a group"
            )
        planned = np.concatenate([groups.members, dropped])
        uses = np.bincount(planned[planned >= 0], minlength=count)
        if planned.min(initial=0) < 0 or len(uses) > count or uses.max(initial=0) > 1:
            raise InvariantError(f"{self.policy.name} planned a sample twice or out of nowhere")
        self._planned = Groups(self._numbers[groups.members], groups.offsets)
        if len(groups):
            shapes = groups.shapes(lengths)
            starts = groups.offsets[:-1]
            self._check_memory(shapes, np.add.reduceat(patches[groups.members], starts))
            self._receipt = Receipt.of(
                shapes,
                np.add.reduceat(supervised[groups.members], starts),
                self.policy.cost,
                packed=self.policy.packed,
            )
        else:
            self._receipt = Receipt.none()
        keep = np.ones(len(self._numbers), bool)
        keep[:count] = uses == 0
        self._pending, self._numbers = self._pending[:, keep], self._numbers[keep]
        self._ages = self._ages[keep]
        returned = count - len(groups.members) - len(dropped)
        self._ages[:returned] += 1
        if not len(groups) and not len(dropped):
            raise InvariantError(f"{self.policy.name} planned nothing in round {self.rounds}")
        self.emitted += len(groups.members)
        self.dropped += len(dropped)
        if self.pending != len(self._numbers) + sum(map(len, self._arrived)):
            raise InvariantError(f"{self.pending} samples pending, {len(self._numbers)} held")

    def _check_memory(self, shapes: GroupShapes, patches: Int64Array) -> None:
        limit = self.policy.limit
        if limit is None:
            return
        # A single sample cannot be made smaller: whether it is accepted is decided as it arrives.
        over = (shapes.samples > 1) & ~limit.fits(shapes, patches)
        if over.any():
            worst = int(np.argmax(over))
            raise InvariantError(
                f"{self.policy.name} planned {shapes.samples[worst]} samples of up to "
                f"{shapes.longest[worst]} tokens together, over {limit}"
            )

    def _conclude(self, bodies: Sequence[memoryview]) -> list[PlannedStep]:
        totals = RoundTotals.decode(bodies)
        count = len(totals)
        self.rounds += 1
        self._phase = _Phase.FILLING
        if self.exhausted == "stop" and count and not totals.samples.all():
            # Some rank has nothing for these steps, so no rank may make them.
            self.emitted -= len(self._planned.members)
            self._stop()
            return []
        settled = SettledRound(self.steps, self._planned, totals, self._mean_supervised)
        first, self.steps = self.steps, self.steps + count
        return [PlannedStep(index, settled) for index in range(first, self.steps)]

    def _stop(self) -> None:
        self._gather()
        self.undelivered += self.pending
        self._phase = _Phase.FINISHED
