"""`RankProtocol`: what one rank does each round, for any transport (ODB, App. C and E).

Rules of this file
- Everything that decides what happens next lives here, and nothing else does: no I/O, no clock, no
  threads. Bytes go out, everybody's bytes come in.
- Every rank takes part in every exchange, unconditionally (Lemma 3): a rank that has nothing left,
  or has failed, still sends a message. So no rank can wait for one that is not coming.
- A sample is in exactly one place (Lemma 1): in the buffer, emitted, dropped by the policy, or left
  undelivered by a stop. This is asserted every round.
- A round is a function of the windows it begins with: so an epoch can be resumed from any
  `RoundStart`, and makes the same steps again.

How to drive it::

    protocol = RankProtocol(EpochOptions(...), rank=rank)
    while not protocol.finished:
        protocol.newly_dealt()                     # where samples are dealt: those to fetch now
        while protocol.wanted:                     # samples still needed before the next message
            protocol.receive(columns)              # or protocol.end_of_source()
        if protocol.lends is not None:             # for a rank that never received a sample
            protocol.lending.lent = (bytes of sample number protocol.lends)
        for step in protocol.incoming(exchange(protocol.outgoing())):
            ...                                    # step.members: arrival numbers to collate

An epoch is one exchange of hellos, in which ranks compare how they were built; then rounds of two
exchanges, proposals and receipts; then a last exchange of proposals in which all ranks have
finished (or one has, under ``exhausted="stop"``). `evenstep.protocol` has the table of states.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import evenstep.protocol.bodies as bodies
import evenstep.protocol.wire as wire
from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, InvariantError
from evenstep.plan.label_reading import UNSHIFTED
from evenstep.plan.value_checks import check_at_least
from evenstep.protocol.agreed import Agreed
from evenstep.protocol.dealt_windows import DealtWindows
from evenstep.protocol.epoch_options import EpochOptions
from evenstep.protocol.look_ahead import LookAhead
from evenstep.protocol.planned_step import PlannedStep
from evenstep.protocol.rank_round import Lending, RankRound
from evenstep.protocol.receipts import RoundTotals
from evenstep.protocol.window_buffer import COLUMNS, RoundStart, WindowBuffer
from evenstep.protocol.window_size import WindowSize
from evenstep.protocol.wire import Exchanged


class _Phase(enum.Enum):
    """States, by the kind of message sent in each. `evenstep.protocol` has the transitions."""

    HELLO = wire.HELLO
    FILLING = wire.PROPOSAL
    SETTLING = wire.RECEIPT
    FINISHED = b""


class RankProtocol:
    """The state machine of one rank for one epoch. See the module docstring."""

    def __init__(
        self,
        options: EpochOptions,
        *,
        rank: int,
        share: int | None = None,
        entries: int | None = None,
        start: RoundStart | None = None,
        has_filler_sample: bool = False,
    ) -> None:
        """
        Args:
            options: the same on every rank.
            rank: this rank, from 0 to ``world_size - 1``.
            share: samples of this rank in the whole epoch, if known. If all ranks know theirs, they
                look ahead and run out in the same round: see `evenstep.protocol.look_ahead`.
            entries: of the one stream that all ranks share, which is dealt out to them as they use
                it up, more than there can be until `end_of_stream` says it; None where each rank
                has a share of its own.
            start: the round to resume from; the epoch's beginning by default. The same round and
                step on all ranks.
            has_filler_sample: whether this rank has a sample to run filler steps with even if it
                receives none.

        Raises:
            ConfigurationError: an argument is out of range.
        """
        check_at_least(0, rank=rank, share=share, entries=entries)
        if rank >= options.world_size:
            raise ConfigurationError(f"rank={rank} must be below world_size={options.world_size}")
        self.options, self.rank = options, rank
        self.policy = policy = options.policy
        start = start or RoundStart.empty()
        self.rounds, self.steps = start.round, start.step
        self._compared = options.compared(start)
        self._phase = _Phase.HELLO
        self._buffer = WindowBuffer(start, multiple=options.padded_to.samples)
        self.size = WindowSize(policy, options.buffer_size, start)
        """While it is fresh, nothing is known of the memory that windows take. Then `room` should
        be set as soon as the first samples are there: a window that there is no memory for need not
        be filled."""
        place: dict[str, Any] = {"rank": rank, "world_size": options.world_size, "start": start}
        known = share if policy.looks_ahead else None
        self._windows: LookAhead | DealtWindows = (
            LookAhead(self.size, share=known, **place)
            if entries is None
            else DealtWindows(self.size, entries=entries, **place)
        )
        self.lending = Lending(rank=rank, has_sample=has_filler_sample)
        self._first_number = start.taken  # of those received here
        self._labels = start.labels
        self._heads: bodies.ProposalHeads | None = None
        """All ranks' proposals of the current round."""
        self._round: RankRound | None = None
        """The current round; None before the first."""
        self.received = len(self._buffer)
        self.emitted = self.dropped = self.undelivered = 0
        self.room = 0
        """Samples that this rank has memory for in a window; 0 if unknown. See `asks_room`."""
        self.too_long = 0
        """Samples of all ranks that were too long, in the epoch up to this round."""
        self.agreed = Agreed(options, start)

    # What the driver reads

    @property
    def finished(self) -> bool:
        return self._phase is _Phase.FINISHED

    @property
    def pending(self) -> int:
        """Samples received and not yet emitted, dropped or left undelivered."""
        return self.received - self.emitted - self.dropped - self.undelivered

    @property
    def asks_room(self) -> bool:
        """Whether `room` should be set before the next message. Not in a resumed round: what was
        agreed in it is known."""
        return self._phase is _Phase.FILLING and not self.agreed.resumes

    @property
    def grows(self) -> bool:
        """Whether the next round is one update, and to be planned once the trainer has taken all
        steps before it."""
        return self.asks_room and self.agreed.grows

    @property
    def taken(self) -> int:
        """Arrival numbers below this one have been in a window."""
        return self._buffer.taken

    @property
    def wanted(self) -> int:
        """Samples still needed before `outgoing` may be called; 0 when it may."""
        if self._phase is not _Phase.FILLING or self.size.too_large(self.room):
            return 0
        return self._windows.missing(self._buffer, self.rounds)

    def newly_dealt(self) -> Int64Array | None:
        """[samples] entries of the stream dealt to this rank since the last call, which it is to
        receive in this order; None once there will be no more."""
        return self._windows.take_new()

    @property
    def drawn(self) -> int:
        """Entries of the shared stream that ranks have drawn; 0 where each has a share."""
        return self._windows.next_entry

    @property
    def paces(self) -> Int64Array | None:
        """[ranks, 4] what ranks have told of themselves last: see `slow_ranks.OwnPace`."""
        return None if self._heads is None else self._heads.pace

    @property
    def lends(self) -> int | None:
        """Arrival number of the sample whose bytes are to be `lending.lent` before the next
        message, for ranks that have none to run fillers with; None if none is due."""
        if self._phase is not _Phase.SETTLING:
            return None
        assert self._round is not None
        return self.lending.due(self._round.start)

    @property
    def contradicting(self) -> int | None:
        """Arrival number of a sample that proves that models read every label, where labels have
        been counted as of models that shift them. If there is one the epoch is to be aborted."""
        if self._labels != "causal" or self._round is None:
            return None
        start = self._round.start
        proofs = np.flatnonzero(start.columns[5] & UNSHIFTED)
        return int(start.numbers[proofs[0]]) if len(proofs) else None

    # What the driver hands over

    def receive(
        self,
        columns: Int64Array,
        numbers: Int64Array | None = None,
        *,
        end: int = 0,
        left_out: Int64Array | None = None,
    ) -> Int64Array:
        """Takes samples in order of arrival.

        Args:
            columns: [samples, k] int64: length, supervised tokens, and if they are counted the
                others of `window_buffer.COLUMNS`. May be more samples than `wanted`: what does not
                fit in the window waits for a later round.
            numbers: [samples] int64 arrival numbers, increasing; by default those that follow.
            end: all samples with lower arrival numbers have come, or were skipped as bad.
            left_out: arrival numbers of those that were skipped as too long.

        Returns:
            The arrival numbers.
        """
        given = np.asarray(columns, np.int64)
        columns = np.zeros((len(given), len(COLUMNS)), np.int64)
        if len(given):
            columns[:, : given.shape[1]] = given
        self.received += len(columns)
        numbers = self._buffer.append(columns, numbers)
        self._buffer.skip_to(end)
        if left_out is not None:
            self._buffer.leave_out(left_out)
        return numbers

    def end_of_source(self) -> None:
        """No more samples will be received this epoch."""
        self._buffer.ended = True

    def end_of_stream(self, entries: int) -> None:
        """The shared stream has no more entries than these. To be said on all ranks before the same
        exchange."""
        assert isinstance(self._windows, DealtWindows)
        self._windows.end_of_stream(entries)

    def window_numbers(self) -> Int64Array:
        """Arrival numbers of the next window, as far as they have come: never of what else has
        arrived, as that depends on timing."""
        self._buffer.gather()
        return self._buffer.numbers[: self._windows.count(self._buffer, self.rounds)]

    # Exchanges

    def outgoing(self) -> bytes:
        """This rank's message for the next exchange."""
        if self._phase is _Phase.FINISHED or self.wanted:
            raise InvariantError(f"no message is due in {self._phase} with {self.wanted} wanted")
        if self._phase is _Phase.HELLO:
            body = bodies.encode_hello(self._compared, self._samples_left())
        elif self._phase is _Phase.FILLING:
            body = self._propose()
        else:
            assert self._round is not None
            receipt = self._round.receipt.encode()
            body = bodies.encode_receipt(self._samples_left(), receipt, self.lending.lent)
        return wire.encode(self._phase.value, body, rank=self.rank, round=self.rounds)

    def incoming(self, messages: Sequence[bytes] | Exchanged) -> list[PlannedStep]:
        """Takes everybody's messages of one exchange, in rank order, this rank's own included.

        Args:
            messages: ranks of one process may share an `Exchanged`.

        Returns:
            The steps that this exchange settled, in order; often none.

        Raises:
            PeerError: a rank sent an abort, or nothing because it left the epoch.
            DamagedMessageError: a rank's message is damaged. Others may have received it whole, so
                this rank has to tell them.
            MismatchError: ranks were built differently, or are in different rounds.
        """
        if self.finished:
            raise InvariantError("no message is expected after the end of the epoch")
        exchanged = messages if isinstance(messages, Exchanged) else Exchanged(messages)
        if (count := len(exchanged.messages)) != self.options.world_size:
            raise InvariantError(f"{count} messages for world size {self.options.world_size}")
        received = exchanged.once(
            wire.open_all,
            exchanged.messages,
            self._phase.value,
            self.rounds,
            rank=self.rank,
            epoch=self.options.epoch,
        )
        if self._phase is _Phase.HELLO:
            self._windows.begin(exchanged.once(bodies.compare_hellos, received))
            self._phase = _Phase.FILLING
            return []
        if self._phase is _Phase.FILLING:
            self._settle(exchanged, received)
            return []
        return self._conclude(exchanged, received)

    # A round

    def _samples_left(self) -> int:
        start = self._round.start if self._round is not None else None
        return self._windows.samples_left(self._buffer, start)

    def _propose(self) -> bytes:
        """Begins a round: this rank's window, and what it proposes to do with it."""
        # If the window will be formed again, it does not matter what this one holds. But it must
        # not depend on what else has come.
        most = 1 if self.size.too_large(self.room) else None
        start = self._windows.look(self._buffer, round=self.rounds, step=self.steps, most=most)
        # By its window, not by what has arrived: messages do not depend on timing.
        self.lending.has_sample |= bool((start.numbers >= self._first_number).any())
        policy, start = self.agreed.begin(start, self.options.padded_to.samples)
        self.size.suit(policy)
        self._round = RankRound(self.options, policy, start)
        head, message = self._round.propose(
            exhausted=self._windows.exhausted(start),
            has_filler_sample=self.lending.has_sample,
            room=self.room,
            **self.agreed.told,
            accumulate=self.agreed.updates.accumulate,
        )
        return bodies.encode_proposal(head, message)

    def _settle(self, exchanged: Exchanged, received: Sequence[memoryview]) -> None:
        """Proposals are in: plans this rank's part of the round, or ends the epoch."""
        heads, messages = exchanged.once(bodies.decode_proposals, received)
        finished = heads.finished
        self.too_long = int(heads.too_long.sum())
        unplannable = finished.all() or (self.options.exhausted == "stop" and finished.any())
        if unplannable and self._windows.done:
            self._stop()
            return
        self._phase = _Phase.SETTLING
        self._heads = heads
        again = self.size.learn(heads)
        assert self._round is not None
        # What was agreed in this round holds if a job resumes it.
        start = replace(self._round.start, window_limit=self.size.limit)
        self._round.start = self.agreed.settle(start, heads)
        self.lending.begin(heads)
        if again:
            self._buffer.forget_window()
            self._windows.begin_again()
            return  # the round has no steps
        if unplannable:
            return  # all that was dealt to some rank is bad: the round has no steps
        if (steps := self.agreed.steps(heads, self.steps)) == 0:
            return
        if (labels := self._labels or heads.labels) is not None:
            self._labels = labels
            self._heads = heads = heads.read_labels(labels)
            columns = self._buffer.read_labels(labels)
            self._round.start = replace(self._round.start, labels=labels, columns=columns)
        plan = self._round.settle(heads, messages, rank=self.rank, buffer=self._buffer, steps=steps)
        if plan is None:
            return
        self.emitted += len(plan.groups.members)
        self.dropped += len(plan.dropped)
        if self.pending != len(self._buffer):
            raise InvariantError(f"{self.pending} samples pending, {len(self._buffer)} held")

    def _conclude(self, exchanged: Exchanged, received: Sequence[memoryview]) -> list[PlannedStep]:
        """Receipts are in: returns the steps of the round, and begins the next one."""
        assert self._round is not None
        assert self._heads is not None
        receipts = exchanged.once(bodies.decode_receipts, received)
        totals = exchanged.once(RoundTotals.decode, receipts.totals, sources=self.options.sources)
        self.rounds += 1
        start = self._round.start
        grown = self.size.grow(self._heads, int(totals.samples.sum()))
        self.agreed.end(start, self._heads, totals, grown=grown)
        self._phase = _Phase.FILLING
        self._windows.end_round(self._heads, totals, receipts.left)
        self.lending.end(receipts.lent)
        if self.options.exhausted == "stop" and len(totals) and not totals.samples.all():
            # Some rank has no samples for these steps, so no rank may make them.
            self.emitted -= len(self._round.groups.members)
            self._stop()
            return []
        self.steps += len(totals)
        return self._round.planned_steps(totals, self.too_long)

    def _stop(self) -> None:
        self.undelivered += self.pending
        self._phase = _Phase.FINISHED
