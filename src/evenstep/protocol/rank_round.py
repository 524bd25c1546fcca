"""One rank's part of one round: the window it began with, its proposal, and the steps it plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import evenstep.protocol.wire as wire
from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.plan_checks import check_memory, check_positions
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.protocol.planned_step import PlannedStep, SettledRound
from evenstep.protocol.receipts import Receipt, RoundTotals
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer


class RankRound:
    """Call `propose`, `settle` and `planned_steps` in this order."""

    def __init__(self, policy: Policy, start: RoundStart, world_size: int) -> None:
        self._policy = policy
        self.start = start
        self._proposal: Proposal | None = None
        self._mean_supervised = np.zeros(world_size)
        self.groups = Groups.empty()
        """This rank's groups of arrival numbers, once settled."""
        self._steps: Int64Array = np.zeros(1, np.int64)
        self.receipt = Receipt.none()

    def propose(
        self,
        *,
        exhausted: bool,
        has_filler_sample: bool,
        room: int,
        accumulate: int,
        seed: int,
        epoch: int,
    ) -> tuple[wire.ProposalHead, bytes]:
        """
        Args:
            exhausted: whether nothing will be added to this window.
            room: samples that the rank has memory for; 0 if unknown.

        Returns:
            This rank's message: that it has finished, or what it would do.
        """
        start = self.start
        lengths, supervised, patches = start.columns
        if not len(lengths):
            return wire.ProposalHead(True, not has_filler_sample, 0, 0, 0, room), b""
        window = Window(
            lengths=lengths,
            ages=start.ages,
            patches=patches if self._policy.counts_patches else None,
            numbers=start.numbers,
            exhausted=exhausted,
            accumulate=accumulate,
            seed=seed,
            epoch=epoch,
            round=start.round,
            step=start.step,
        )
        self._proposal = self._policy.propose(window)
        held = len(window), int(supervised.sum()), int(lengths.sum())
        head = wire.ProposalHead(False, False, *held, room)
        return head, self._proposal.message.astype("<i8").tobytes()

    def settle(
        self,
        heads: Sequence[wire.ProposalHead],
        messages: Sequence[memoryview],
        *,
        rank: int,
        buffer: WindowBuffer,
    ) -> Plan | None:
        """Plans this rank's steps from all ranks' proposals, and moves their samples out of the
        buffer. None if this rank has finished."""
        samples = np.array([head.samples for head in heads], np.float64)
        supervised = np.array([head.supervised for head in heads], np.float64)
        self._mean_supervised = supervised / np.maximum(samples, 1)
        if self._proposal is None:
            return None
        finished = np.array([head.finished for head in heads])
        # numbers: [ranks, k], zeros for a rank that has finished
        numbers = np.zeros((len(heads), len(self._proposal.message)), np.int64)
        sent = [bytes(message) for head, message in zip(heads, messages) if not head.finished]
        numbers[~finished] = np.frombuffer(b"".join(sent), "<i8").reshape(len(sent), -1)
        plan = self._policy.settle(self._proposal, numbers, rank)
        window_size = len(self.start.numbers)
        buffer.remove(check_positions(self._policy, plan, window_size), plan.waited)
        self.groups = Groups(self.start.numbers[plan.groups.members], plan.groups.offsets)
        self._steps = plan.step_offsets
        if len(plan.groups):
            self.receipt = self._make_receipt(plan)
        return plan

    def _make_receipt(self, plan: Plan) -> Receipt:
        lengths, supervised, patches = self.start.columns
        groups, begins = plan.groups, plan.groups.offsets[:-1]
        shapes = groups.shapes(lengths)
        check_memory(self._policy, shapes, np.add.reduceat(patches[groups.members], begins))
        return Receipt.of(
            shapes,
            lengths[groups.members],
            np.add.reduceat(supervised[groups.members], begins),
            self._policy.cost,
            packed=self._policy.packed,
            steps=plan.step_offsets,
        )

    def planned_steps(self, totals: RoundTotals) -> list[PlannedStep]:
        """The round's steps, once the totals of all ranks are known."""
        settled = SettledRound(self.start, self.groups, self._steps, totals, self._mean_supervised)
        first = self.start.step
        return [PlannedStep(index, settled) for index in range(first, first + len(totals))]
