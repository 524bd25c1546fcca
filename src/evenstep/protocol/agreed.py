"""What ranks agree on from one round to the next, beside the plan.

Two things are measured while training: what pairs of tokens and patches cost, and how many tokens
of a group fit in memory. Ranks tell them in their proposals. A round is planned with what was
agreed before it, and its start has both that and what holds from the next round on: so a job that
resumes the round makes it as it was. What ranks tell of their pace changes no plan.

A third follows from the steps: how full groups are. Groups that should have 1,000 tokens may have
800 of samples, as they are padded, and as ranks meet those whose long samples leave room. Where an
update is to have 8,000 on one rank in 8 steps, groups should have 1,250 then.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evenstep.arrays import rounded_up
from evenstep.cost.vision_language import UNMEASURED, at_ratios
from evenstep.plan.fit import Fit, Updates
from evenstep.plan.policy import Policy
from evenstep.protocol.bodies import ProposalHeads
from evenstep.protocol.epoch_options import EpochOptions
from evenstep.protocol.receipts import RoundTotals
from evenstep.protocol.slow_ranks import UNTIMED
from evenstep.protocol.window_buffer import RoundStart
from evenstep.protocol.window_size import FIRST_SIZE

_KEPT = 7
"""Eighths that steps before a round count, over those of the round."""


class Agreed:
    """Of one rank. In each round call `begin`, `settle`, `steps` and `end` in this order."""

    def __init__(self, options: EpochOptions, start: RoundStart) -> None:
        """
        Args:
            start: the round to resume from.
        """
        policy = options.policy
        self.ratios = UNMEASURED
        """What pairs of tokens and patches were measured to cost, for rank 0 to tell."""
        self.pace = UNTIMED
        """Of this rank, for it to tell."""
        self.found = 0, 0
        """Tokens of groups, and how many of them this rank finds to fit then; zeros if none."""
        self._policy = policy
        self._sizes = dict(options.sizes)
        self._asked = options.update_tokens if hasattr(policy, "target_tokens") else 0
        self._ranks = options.world_size
        self._filled = start.filled
        self._wanted = 0
        """Tokens that groups of the round should have."""
        self._ratios = start.ratios
        self._fits = start.fits
        if self._fits is None and policy.fits_memory:
            self._fits = Fit(), Fit()
        self.updates = start.updates if options.sizes else Updates(options.accumulate)
        """Which steps are an update, in the round begun last."""
        self.resumes = start.quota is not None
        """The next round, or the one begun, is resumed: what was agreed in it is known."""

    @property
    def grows(self) -> bool:
        """Whether larger groups are tried."""
        return self._fits is not None and self._fits[0].grows

    def begin(self, start: RoundStart, multiple: int) -> tuple[Policy, RoundStart]:
        """The policy of a round, and its start with what is agreed.

        Args:
            multiple: of tokens to which each sample is padded.
        """
        policy = self._policy
        if (cost := at_ratios(policy.cost, self._ratios[0])) != policy.cost:
            policy = replace(policy, cost=cost)  # type: ignore[type-var]
        if self._fits is not None:
            fit, _ = self._fits
            # A longer sample than was known is told now, and planned with in the next round.
            longest = int(rounded_up(start.columns[0], multiple).max(initial=0))
            tokens = max(self._tokens_within(fit, start.step), fit.longest, longest)
            policy = replace(policy, max_tokens=tokens)  # type: ignore[type-var]
            self._wanted = tokens
        elif self._asked:
            given: Any = policy
            most = given.max_tokens
            self._wanted = min(self._corrected(given.target_tokens or most), most)
            policy = replace(given, target_tokens=self._wanted)
        return policy, replace(start, fits=self._fits, updates=self.updates, filled=self._filled)

    def _corrected(self, tokens: int) -> int:
        """Tokens that groups should have for an update to have what is asked.

        Args:
            tokens: while no steps were made.
        """
        held, wanted = self._filled
        if not held:
            return tokens
        return -(-self._asked * wanted // (self._ranks * self.updates.accumulate * held))

    def _tokens_within(self, fit: Fit, step: int) -> int:
        """Tokens of a group, of updates that have no more groups than they need."""
        if not self._sizes:
            return fit.most
        fewest = [steps for steps, tokens in self._sizes.items() if tokens <= fit.most]
        if not self.resumes:
            self.updates = self.updates.of(min(fewest, default=max(self._sizes)), step)
        return min(fit.most, self._corrected(self._sizes.get(self.updates.accumulate, fit.most)))

    @property
    def told(self) -> dict[str, Any]:
        """The part of this rank's proposal that is about it."""
        fits = 0
        if self._fits is not None and self.found[0] == self._fits[0].most:
            fits = self.found[1]
        known = self.resumes or self.ratios == UNMEASURED
        ratios = self._ratios[1] if known else self.ratios
        return {"fits": fits, "ratios": ratios, "pace": self.pace}

    def settle(self, start: RoundStart, heads: ProposalHeads) -> RoundStart:
        """The start of a round, with what all ranks' proposals make hold from the next one on."""
        now, then = self._ratios
        pair, patch = heads.ratios[0].tolist()
        told = pair, patch
        fits = self._fits
        if fits is not None and not self.resumes:
            proposing = ~heads.finished
            fits = fits[0], fits[0].after(heads.fits[proposing], int(heads.longest.max()))
        return replace(start, ratios=(now, then if told == UNMEASURED else told), fits=fits)

    def steps(self, heads: ProposalHeads, step: int) -> int | None:
        """How many steps a round may make that begins at `step`; None for any number. While groups
        grow it is one update; and none where some rank has a sample that is longer than its groups,
        for which the next round has room."""
        if self._fits is None:
            return None
        if int(heads.longest.max()) > self._fits[0].most:
            return 0
        updates = self.updates
        return updates.accumulate - updates.micro_step(step) if self.grows else None

    def end(
        self, start: RoundStart, heads: ProposalHeads, totals: RoundTotals, *, grown: bool
    ) -> None:
        """What holds from the next round on is what the start of this one says, and its steps.

        Args:
            grown: the next windows are larger, and their groups fuller: much so after the first.
        """
        # What ranks make of all that is left, at the end of an epoch, says nothing of others.
        ends = self._ranks > 1 and totals.samples.sum() == heads.samples.sum()
        first = grown and (start.window_size or 0) <= FIRST_SIZE
        if self._asked and len(totals) and not ends and not first:
            held, wanted = (0, 0) if grown else self._filled
            more = int(totals.tokens.sum()), len(totals) * self._ranks * self._wanted
            self._filled = held * _KEPT // 8 + more[0], wanted * _KEPT // 8 + more[1]
        self.resumes = False
        self._ratios = start.ratios[1], start.ratios[1]
        self._fits = start.fits and (start.fits[1], start.fits[1])
