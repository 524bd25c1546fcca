"""One rank's part of one round: the window it began with, its proposal, and the steps it plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.arrays import Int64Array, rounded_up
from evenstep.errors import EvenstepError, InvariantError, described
from evenstep.plan.groups.groups import Groups
from evenstep.plan.label_reading import FIRST, UNSHIFTED
from evenstep.plan.packing.shared_step import SharedStep
from evenstep.plan.padded_to import PaddedTo
from evenstep.plan.plan_checks import check_memory, check_positions
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.protocol.bodies import ProposalHead, ProposalHeads
from evenstep.protocol.own_receipt import Receipt
from evenstep.protocol.planned_step import PlannedStep, SettledRound
from evenstep.protocol.receipts import RoundTotals
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer


class RankRound:
    """Call `propose`, `settle` and `planned_steps` in this order."""

    def __init__(
        self,
        policy: Policy,
        start: RoundStart,
        world_size: int,
        *,
        padded_to: PaddedTo,
        sources: int = 0,
    ) -> None:
        self._policy, self._sources = policy, sources
        self.start = start
        self._padded_to = padded_to
        self._rooms = rounded_up(start.columns[0], padded_to.samples)
        """[samples] tokens of each as policies see them."""
        self._proposal: Proposal | None = None
        self._world_size = world_size
        self.groups = Groups.empty()
        """This rank's groups of arrival numbers, once settled."""
        self._steps: Int64Array = np.zeros(1, np.int64)
        self.receipt = Receipt.none()
        self._shared: SharedStep | None = None

    def propose(
        self,
        *,
        exhausted: bool,
        has_filler_sample: bool,
        room: int,
        pair_cost: int,
        accumulate: int,
        seed: int,
        epoch: int,
    ) -> tuple[ProposalHead, Int64Array]:
        """
        Args:
            exhausted: whether nothing will be added to this window.
            room: samples that the rank has memory for; 0 if unknown.
            pair_cost: see `ProposalHead`.

        Returns:
            This rank's message: that it has finished, or what it would do. Then [k] what the policy
            has to say.
        """
        start = self.start
        lengths, supervised, patches, images, patch_pairs, shows, _ = start.columns
        counts = self._policy.counts_patches
        if not len(lengths):
            head = ProposalHead(True, not has_filler_sample, 0, 0, 0, room, pair_cost=pair_cost)
            return head, np.empty(0, np.int64)
        window = Window(
            lengths=self._rooms,
            ages=start.ages,
            patches=patches if counts else None,
            images=images if counts else None,
            patch_pairs=patch_pairs if counts else None,
            exhausted=exhausted,
            accumulate=accumulate,
            seed=seed,
            epoch=epoch,
            round=start.round,
            step=start.step,
            ranks=self._world_size,
            seen_lengths=start.seen_lengths,
        )
        self._proposal = self._policy.propose(window)
        held = len(window), int(supervised.sum()), int(lengths.sum())
        counted = [int(np.count_nonzero(shows & bit)) for bit in (FIRST, UNSHIFTED)]
        head = ProposalHead(False, False, *held, room, counted[0], counted[1], pair_cost)
        return head, self._proposal.message

    def settle(
        self,
        heads: ProposalHeads,
        messages: Int64Array,
        *,
        rank: int,
        buffer: WindowBuffer,
    ) -> Plan | None:
        """Plans this rank's steps from all ranks' proposals, and moves their samples out of the
        buffer.

        Args:
            messages: [ranks, k] of the policy, zeros for a rank that has finished.

        Returns:
            None if this rank has finished.

        Raises:
            InvariantError: the policy cannot make a plan of these messages, or makes a wrong one.
        """
        try:
            if self._policy.dynamic:
                self._shared = self._policy.share(messages)
            if self._proposal is None:
                return None
            plan = self._policy.settle(self._proposal, messages, rank)
        except EvenstepError:
            raise
        except Exception as error:
            raise InvariantError(
                f"{self._policy.name} on rank {rank} cannot plan round {self.start.round} from "
                f"what all ranks proposed: {described(error)}"
            ) from error
        window_size = len(self.start.numbers)
        buffer.remove(check_positions(self._policy, plan, window_size))
        self.groups = Groups(self.start.numbers[plan.groups.members], plan.groups.offsets)
        self._steps = plan.step_offsets
        if len(plan.groups):
            self.receipt = self._make_receipt(plan)
        return plan

    def _make_receipt(self, plan: Plan) -> Receipt:
        lengths, supervised, *vision, _, source = self.start.columns
        groups, begins = plan.groups, plan.groups.offsets[:-1]
        counted = np.array(vision) if self._policy.counts_patches else None
        shapes = groups.shapes(self._rooms, counted)
        check_memory(self._policy, shapes)
        return Receipt.of(
            shapes,
            lengths[groups.members],
            np.add.reduceat(supervised[groups.members], begins),
            self._policy.cost,
            packed=self._policy.packed,
            row_multiple=self._padded_to.rows,
            steps=plan.step_offsets,
            source=source[groups.members],
            sources=self._sources,
        )

    def planned_steps(self, totals: RoundTotals) -> list[PlannedStep]:
        """The round's steps, once the totals of all ranks are known."""
        if self._shared is not None:
            # What ranks train on; the other totals are of what they read.
            totals = replace(totals, cost=self._shared.costs[:, None])
        settled = SettledRound(self.start, self.groups, self._steps, totals, self._shared)
        first = self.start.step
        return [PlannedStep(index, settled) for index in range(first, first + len(totals))]
