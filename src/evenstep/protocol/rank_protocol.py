"""What one rank does each round, for any transport (ODB, App. C and E).

Rules of this file
- Everything that decides what happens next lives here, and nothing else does: no I/O, no clock, no
  threads. Bytes go out, everybody's bytes come in.
- Every rank takes part in every exchange, unconditionally (Lemma 3): a rank that has nothing left,
  or has failed, still sends a message. So no rank can wait for one that is not coming.
- A sample is in exactly one place (Lemma 1): in the buffer, emitted, dropped by the policy, or left
  undelivered by a stop. This is asserted every round.
- A round is a function of the windows it begins with: so an epoch can be gone on with from any
  `RoundStart`, and makes the same steps again.

How to drive it::

    protocol = RankProtocol(...)
    while not protocol.finished:
        while protocol.wanted:                     # samples still needed before the next message
            protocol.receive(columns)              # or protocol.end_of_source()
        if protocol.lends is not None:             # another rank has never had a sample
            protocol.lend(bytes of sample number protocol.lends)
        for step in protocol.incoming(exchange(protocol.outgoing())):
            ...                                    # step.members: arrival numbers to collate

An epoch is one hello exchange, in which ranks compare how they were built; then rounds of two
exchanges, proposals and receipts; then a last exchange of proposals in which all say that they have
finished (or one does, under ``exhausted="stop"``).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import evenstep.protocol.wire as wire
from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.plan_checks import check_memory, check_positions
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.protocol.planned_step import PlannedStep, SettledRound
from evenstep.protocol.receipts import Receipt, RoundTotals
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer

__all__ = ["EXHAUSTED_MODES", "RankProtocol"]


EXHAUSTED_MODES = ("pad", "stop")

_UNKNOWN = -1  # samples left, where the source has no size


class _Phase(enum.Enum):
    HELLO = wire.HELLO
    FILLING = wire.PROPOSAL
    SETTLING = wire.RECEIPT
    FINISHED = b""


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
        share: int | None = None,
        start: RoundStart | None = None,
        has_spare: bool = False,
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
            share: samples of this rank in the whole epoch, where it is known. With it the ranks
                look ahead: they spread what is left of each over equally many rounds, so that all
                run out in the same one.
            start: where to go on; the epoch's beginning by default. Equally far on all ranks.
            has_spare: whether this rank has a sample to fill steps with even if it receives none.
            options: anything else that must be equal on all ranks, such as the dataset's size.

        Raises:
            ConfigurationError: an argument is out of range.
        """
        check_at_least(1, world_size=world_size, buffer_size=buffer_size)
        check_at_least(0, rank=rank, epoch=epoch, share=share)
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
        self._buffer_size = buffer_size
        self.rounds = start.round if start else 0
        self.steps = start.step if start else 0
        self._compared = {
            "world size": world_size,
            "policy": policy.fingerprint,
            "buffer_size": buffer_size,
            "exhausted": exhausted,
            "seed": seed,
            "epoch": epoch,
            "round to begin with": self.rounds,
            "step to begin with": self.steps,
            **(options or {}),
        }
        self._share = share if policy.looks_ahead else None
        self._phase = _Phase.HELLO
        self._source_ended = False
        self._buffer = WindowBuffer(start)
        # The round under way is planned again as it was: the ranks knew less when it began.
        self._first_quota = start.quota if start else None
        self._start: RoundStart | None = None
        self._proposal: Proposal | None = None
        self._planned, self._planned_steps = Groups.empty(), np.zeros(1, np.int64)
        self._receipt = Receipt.none()
        self._mean_supervised = np.zeros(world_size)
        self._left = [_UNKNOWN] * world_size
        self._has_spare = has_spare
        self._lends = False
        self._lent = b""
        self.borrowed = b""
        """A sample of another rank, on a rank that never had one of its own."""
        self.received = len(self._buffer)
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
    def taken(self) -> int:
        """Arrival numbers below this one have been in a window."""
        return self._buffer.taken

    @property
    def wanted(self) -> int:
        """Samples still needed before `outgoing` may be called; 0 when it may."""
        if self._phase is not _Phase.FILLING or self._source_ended:
            return 0
        return max(0, self._quota() - self.pending)

    @property
    def lends(self) -> int | None:
        """Arrival number of the sample to `lend` before the next message; None if none is due."""
        if self._phase is not _Phase.SETTLING or not self._lends or self._lent:
            return None
        assert self._start is not None
        return int(self._start.numbers[self._start.columns[0].argmin()])

    # What the driver tells

    def receive(self, columns: Int64Array, numbers: Int64Array | None = None) -> Int64Array:
        """Takes samples in order of arrival.

        Args:
            columns: [samples, 3] int64: length, supervised tokens, patches. May be more than
                `wanted`: what does not fit in the window waits for a later round.
            numbers: [samples] int64 arrival numbers, increasing; by default those that follow.

        Returns:
            The arrival numbers.
        """
        if self._source_ended:
            raise InvariantError("samples received after the end of the source")
        columns = np.asarray(columns, np.int64).reshape(-1, 3)
        self.received += len(columns)
        self._has_spare = self._has_spare or len(columns) > 0
        return self._buffer.append(columns, numbers)

    def end_of_source(self) -> None:
        """No more samples will be received this epoch."""
        self._source_ended = True

    def lend(self, sample: bytes) -> None:
        """Gives the sample that `lends` asked for, for ranks that have none to fill steps with."""
        self._lent = sample

    # Exchanges

    def outgoing(self) -> bytes:
        """This rank's message for the next exchange."""
        if self._phase is _Phase.FINISHED or self.wanted:
            raise InvariantError(f"no message is due in {self._phase} with {self.wanted} wanted")
        if self._phase is _Phase.HELLO:
            body = wire.encode_hello(self._compared, self._samples_left())
        elif self._phase is _Phase.FILLING:
            body = self._propose()
        else:
            body = wire.encode_receipt(self._samples_left(), self._receipt.encode(), self._lent)
        return wire.encode(self._phase.value, self.rounds, body)

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
        if len(messages) != self.world_size:
            raise InvariantError(f"{len(messages)} messages for world size {self.world_size}")
        bodies = wire.open_all(
            messages, self._phase.value, self.rounds, rank=self.rank, epoch=self.epoch
        )
        if self._phase is _Phase.HELLO:
            self._left = wire.compare_hellos(bodies)
            self._phase = _Phase.FILLING
            return []
        if self._phase is _Phase.FILLING:
            self._settle(bodies)
            return []
        return self._conclude(bodies)

    # A round

    def _samples_left(self) -> int:
        """Samples of this rank that are still to be planned, as far as its windows tell. What it
        has received besides does not count: that depends on the time, and this decides steps."""
        if self._share is None:
            return _UNKNOWN
        if self._start is not None and not len(self._start.numbers):
            return 0  # finished, whatever it was told of its share
        return max(self._share - self._buffer.taken, 0) + self._buffer.seen

    def _quota(self) -> int:
        """Samples in the window of the round that begins.

        Where all know how much they have left, the rank with most decides in how many rounds all
        run out. So none has to wait for the others with nothing to train on, and the last window is
        no mere remainder.
        """
        if self._first_quota is not None:
            return self._first_quota
        size = self.policy.window_size_at(self._buffer_size, self.rounds)
        own = self._left[self.rank]
        if own <= 0 or not self._all_known():
            return size
        rounds = -(-max(self._left) // size)
        return -(-own // rounds)

    def _propose(self) -> bytes:
        quota = self._quota()
        self._start = start = self._buffer.look(quota, round=self.rounds, step=self.steps)
        lengths, supervised, patches = start.columns
        if not len(lengths):
            self._proposal = None
            head = wire.ProposalHead(True, not self._has_spare, 0, 0)
            return wire.encode_proposal(head, b"")
        window = Window(
            lengths=lengths,
            ages=start.ages,
            patches=patches if self.policy.counts_patches else None,
            numbers=start.numbers,
            exhausted=len(lengths) < quota or (self._all_known() and not self._after(start)),
            seed=self.seed,
            epoch=self.epoch,
            round=self.rounds,
        )
        self._proposal = self.policy.propose(window)
        head = wire.ProposalHead(False, False, len(window), int(supervised.sum()))
        return wire.encode_proposal(head, self._proposal.message.astype("<i8").tobytes())

    def _all_known(self) -> bool:
        """Whether all ranks know how much they have left."""
        return min(self._left) >= 0

    def _after(self, start: RoundStart) -> int:
        """Samples of this rank's share that come after a window. Told by numbers alone: that the
        source has ended is known sooner or later, as it happens."""
        return max((self._share or 0) - start.taken, 0)

    def _settle(self, bodies: Sequence[memoryview]) -> None:
        proposals = [wire.decode_proposal(body) for body in bodies]
        heads = [head for head, _ in proposals]
        finished = np.array([head.finished for head in heads])
        if finished.all() or (self.exhausted == "stop" and finished.any()):
            self._stop()
            return
        samples = np.array([head.samples for head in heads], np.float64)
        supervised = np.array([head.supervised for head in heads], np.float64)
        self._mean_supervised = supervised / np.maximum(samples, 1)
        self._phase = _Phase.SETTLING
        # One rank that has samples lends its shortest to those that never had any.
        asked = any(head.lacks_spare for head in heads)
        self._lends, self._lent = asked and int(np.argmin(finished)) == self.rank, b""
        if self._proposal is None:
            self._planned, self._planned_steps = Groups.empty(), np.zeros(1, np.int64)
            self._receipt = Receipt.none()
            return
        messages = np.zeros((self.world_size, len(self._proposal.message)), np.int64)
        sent = [bytes(message) for head, message in proposals if not head.finished]
        messages[~finished] = np.frombuffer(b"".join(sent), "<i8").reshape(len(sent), -1)
        self._take(self.policy.settle(self._proposal, messages, self.rank))

    def _take(self, plan: Plan) -> None:
        """Moves a plan's samples out of the buffer, and makes the receipt of them."""
        assert self._start is not None
        lengths, supervised, patches = self._start.columns
        groups, dropped = plan.groups, plan.dropped
        self._buffer.remove(check_positions(self.policy, plan, len(lengths)), plan.waited)
        self._planned = Groups(self._start.numbers[groups.members], groups.offsets)
        self._planned_steps = plan.step_offsets
        self._receipt = Receipt.none()
        if len(groups):
            shapes, begins = groups.shapes(lengths), groups.offsets[:-1]
            check_memory(self.policy, shapes, np.add.reduceat(patches[groups.members], begins))
            self._receipt = Receipt.of(
                shapes,
                np.add.reduceat(supervised[groups.members], begins),
                self.policy.cost,
                packed=self.policy.packed,
                steps=plan.step_offsets,
            )
        self.emitted += len(groups.members)
        self.dropped += len(dropped)
        if self.pending != len(self._buffer):
            raise InvariantError(f"{self.pending} samples pending, {len(self._buffer)} held")

    def _conclude(self, bodies: Sequence[memoryview]) -> list[PlannedStep]:
        assert self._start is not None
        receipts = [wire.decode_receipt(body) for body in bodies]
        totals = RoundTotals.decode([receipt.totals for receipt in receipts])
        count = len(totals)
        self.rounds += 1
        self._first_quota = None
        self._phase = _Phase.FILLING
        self._left = [receipt.left for receipt in receipts]
        if not self._has_spare:
            self.borrowed = next((receipt.lent for receipt in receipts if receipt.lent), b"")
            self._has_spare = bool(self.borrowed)
        if self.exhausted == "stop" and count and not totals.samples.all():
            # Some rank has nothing for these steps, so no rank may make them.
            self.emitted -= len(self._planned.members)
            self._stop()
            return []
        settled = SettledRound(
            self._start, self._planned, self._planned_steps, totals, self._mean_supervised
        )
        first, self.steps = self.steps, self.steps + count
        return [PlannedStep(index, settled) for index in range(first, self.steps)]

    def _stop(self) -> None:
        self.undelivered += self.pending
        self._phase = _Phase.FINISHED
