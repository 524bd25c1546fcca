"""One rank's part of one round: the window it began with, its proposal, and the steps it plans.

`Lending` is about filler samples: what ranks run zero-loss steps with once they have no samples
left for a step. A rank keeps one of its own samples for that. A rank that has finished without ever
receiving one says so in its proposal; then the first rank that still has samples sends its shortest
with its receipt, before any of the round's steps is known.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array, rounded_up
from evenstep.cost.vision_language import Ratios
from evenstep.errors import EvenstepError, InvariantError, described
from evenstep.plan.groups import Groups
from evenstep.plan.label_reading import FIRST, UNSHIFTED
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.protocol.bodies import ProposalHead, ProposalHeads
from evenstep.protocol.epoch_options import EpochOptions
from evenstep.protocol.planned_step import PlannedStep, SettledRound
from evenstep.protocol.receipts import Receipt, RoundTotals, counts_by_source
from evenstep.protocol.slow_ranks import OwnPace
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer


class RankRound:
    """Call `propose`, `settle` and `planned_steps` in this order."""

    def __init__(self, options: EpochOptions, policy: Policy, start: RoundStart) -> None:
        """
        Args:
            policy: that of `options`, with what was agreed for this round.
        """
        self._options, self._policy = options, policy
        self.start = start
        self._rooms = rounded_up(start.columns[0], options.padded_to.samples)
        """[samples] tokens of each as policies see them."""
        self._proposal: Proposal | None = None
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
        fits: int,
        ratios: Ratios,
        pace: OwnPace,
        accumulate: int,
    ) -> tuple[ProposalHead, Int64Array]:
        """
        Args:
            exhausted: whether nothing will be added to this window.
            room: samples that the rank has memory for; 0 if unknown.
            fits, ratios, pace: see `ProposalHead`.

        Returns:
            This rank's message: that it has finished, or what it would do. Then [k] what the policy
            has to say.
        """
        start = self.start
        lengths, supervised, patches, images, patch_pairs, shows, _ = start.columns
        counts = self._policy.counts_patches
        if not len(lengths):
            lacks, too_long = not has_filler_sample, start.too_long
            head = ProposalHead(True, lacks, 0, 0, 0, room, too_long=too_long, ratios=ratios)
            return head._replace(pace=pace), np.empty(0, np.int64)
        window = Window(
            lengths=self._rooms,
            ages=start.ages,
            patches=patches if counts else None,
            images=images if counts else None,
            patch_pairs=patch_pairs if counts else None,
            exhausted=exhausted,
            accumulate=accumulate,
            seed=self._options.seed,
            epoch=self._options.epoch,
            round=start.round,
            step=start.step,
            ranks=self._options.world_size,
            seen_lengths=start.seen_lengths,
        )
        self._proposal = self._policy.propose(window)
        held = len(window), int(supervised.sum()), int(lengths.sum())
        first, unshifted = (int(np.count_nonzero(shows & bit)) for bit in (FIRST, UNSHIFTED))
        longest = int(self._rooms.max())
        shown = room, first, unshifted, longest, fits, start.too_long
        head = ProposalHead(False, False, *held, *shown, ratios, pace)
        return head, self._proposal.message

    def settle(
        self,
        heads: ProposalHeads,
        messages: Int64Array,
        *,
        rank: int,
        buffer: WindowBuffer,
        steps: int | None,
    ) -> Plan | None:
        """Plans this rank's steps from all ranks' proposals, and moves their samples out of the
        buffer.

        Args:
            messages: [ranks, k] of the policy, zeros for a rank that has finished.
            steps: how many to make at most; the samples of the others stay. None makes all.

        Returns:
            None if this rank has finished.

        Raises:
            InvariantError: the policy cannot make a plan of these messages, or makes a wrong one.
        """
        if self._proposal is None:
            return None
        try:
            plan = self._policy.settle(self._proposal, messages, rank).first(steps)
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
        of_samples = lengths[groups.members]
        by_source = None
        if sources := self._options.sources:
            offsets = groups.offsets[plan.step_offsets]
            by_source = counts_by_source(source[groups.members], sources, of_samples, offsets)
        return Receipt.of(
            shapes,
            of_samples,
            np.add.reduceat(supervised[groups.members], begins),
            self._policy.cost,
            packed_to=self._options.padded_to.rows if self._policy.packed else None,
            steps=plan.step_offsets,
            by_source=by_source,
        )

    def planned_steps(self, totals: RoundTotals, too_long: int) -> list[PlannedStep]:
        """The round's steps, once the totals of all ranks are known."""
        settled = SettledRound(self.start, self.groups, self._steps, totals, too_long)
        first = self.start.step
        return [PlannedStep(index, settled) for index in range(first, first + len(totals))]


def check_positions(policy: Policy, plan: Plan, count: int) -> Int64Array:
    """Checks that the plan names each window position at most once.

    Args:
        count: samples in the window.

    Returns:
        The window positions that leave the window, each once.

    Raises:
        InvariantError: the plan names a position twice, or one that is not in the window, or plans
            nothing.
    """
    planned = np.concatenate([plan.groups.members, plan.dropped])
    if not len(planned):
        raise InvariantError(f"{policy.name} planned nothing in a round")
    if planned.min() < 0 or planned.max() >= count or np.bincount(planned).max() > 1:
        raise InvariantError(f"{policy.name} planned a sample twice, or one not in the window")
    return planned


class Lending:
    """One rank's side: whether it lends or borrows a sample in the round that is being settled."""

    def __init__(self, *, rank: int, has_sample: bool) -> None:
        self._rank = rank
        self.has_sample = has_sample
        """Whether this rank has a filler sample, its own or a borrowed one."""
        self.borrowed = b""
        """A sample that another rank lent to this one; empty if none."""
        self.lent = b""
        """The sample that this rank lends in this round; empty if none."""
        self.lender: int | None = None
        """The rank that lends one in this round; None where no rank needs one."""

    def begin(self, heads: ProposalHeads) -> None:
        """Finds out from all ranks' proposals which rank has to lend in this round."""
        asked = heads.lacks_filler_sample.any() and not heads.finished.all()
        self.lender = int(heads.finished.argmin()) if asked else None
        self.lent = b""

    def due(self, start: RoundStart) -> int | None:
        """Arrival number of the sample that this rank has still to lend: its shortest."""
        if self.lender != self._rank or self.lent:
            return None
        return int(start.numbers[start.columns[0].argmin()])

    def end(self, lent: bytes) -> None:
        """Borrows the sample that a rank lent in its receipt, if this rank has none."""
        if not self.has_sample:
            self.borrowed = lent
            self.has_sample = bool(lent)
