"""`Even`: equal cost on every rank in every step. The policy to use.

Ranks wait for the one whose group costs most, so a step is well spent if all cost the same. Each
round:

1. Each rank groups its window as `TokenBudget` does, and picks the groups with its oldest samples,
   half of them. It sends quantiles of their costs: 17 numbers, whatever the buffer.
2. The pooled quantiles of all ranks are the steps' *targets*, the same on every rank: a sample of
   what groups cost here, so that there is a fitting step for long samples and for short ones.
3. Each rank fills every step with samples that cost as much as its target, and no more: see
   `matching`. What is lost is what a group stays below its target; it does not grow with the number
   of ranks, as it would if the largest of many deviations counted.
4. Steps are shuffled, alike on all ranks, so their order tells nothing of length.

Half the window stays, so that there is always a choice. At the end of the epoch there is none: then
a rank that has less left scales its targets down, so that all run out together.

No sample starves: see `Even.max_wait`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenstep.cost import Cost, MemoryLimit, PaddedTokenCost
from evenstep.plan.alignment import align, alignment_target
from evenstep.plan.grouping import token_budget_groups
from evenstep.plan.groups import Groups, generator
from evenstep.plan.matching import Matcher, oldest_of
from evenstep.plan.policy import (
    Int64Array,
    Plan,
    Policy,
    Proposal,
    Window,
    check_at_least,
    check_given,
)

__all__ = ["Even"]

_QUANTILES = 16
_LAST = 24  # groups; with no more than that left on any rank, all are emitted in one round
_SHUFFLE = 4  # last word of the random key, so that no other use of the seed draws the same numbers

# Columns of a message.
_STEPS, _GROUPS, _SAMPLES, _EXHAUSTED, _TOTAL = range(5)


@dataclass(frozen=True)
class Even(Policy):
    """Groups of equal cost on all ranks, under a budget of padded tokens."""

    max_tokens: int
    """No group has more tokens after padding (samples x longest). A longer sample is refused."""
    max_patches: int | None = field(default=None, kw_only=True)
    """Vision patches per group; a single sample above it stays alone."""
    max_wait: int = field(default=5, kw_only=True)
    """After this many rounds in the window the oldest sample is emitted for certain, at the price
    of some imbalance. So every sample is emitted within ``max_wait + window size`` rounds; as half
    the window goes in each round, the oldest first, in practice within ``max_wait + 3``."""
    cost: Cost = field(default=PaddedTokenCost(), kw_only=True)
    """What is made equal. The memory limit holds besides it."""

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens, max_wait=self.max_wait)
        check_at_least(1, max_tokens=self.max_tokens, max_patches=self.max_patches)
        check_at_least(0, max_wait=self.max_wait)

    @property
    def max_length(self) -> int | None:
        return self.max_tokens

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(max_tokens=self.max_tokens, max_patches=self.max_patches)

    @property
    def counts_patches(self) -> bool:
        return self.max_patches is not None

    def propose(self, window: Window) -> Proposal:
        groups = token_budget_groups(
            window.lengths, self.max_tokens, patches=window.patches, max_patches=self.max_patches
        )
        costs = self.cost(groups.shapes(window.lengths), packed=False)
        steps = -(-len(groups) // 2)
        chosen = np.sort(costs[np.argsort(oldest_of(groups), kind="stable")[:steps]])
        ranks = (2 * np.arange(_QUANTILES) + 1) * steps // (2 * _QUANTILES)
        numbers = [steps, len(groups), len(window), int(window.exhausted)]
        reals = np.concatenate([[costs.sum()], chosen[ranks]])
        message = np.concatenate([np.array(numbers, np.int64), reals.view(np.int64)])
        return Proposal(message, groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window = proposal.window
        active = messages[messages[:, _GROUPS] > 0]
        ending = bool(active[:, _EXHAUSTED].all())
        if ending and active[:, _GROUPS].max() <= _LAST:
            groups = self._all(proposal.groups, messages)
        else:
            steps = int(min(active[:, _STEPS].min(), active[:, _SAMPLES].min()))
            targets = _targets(active, steps)
            if ending:
                totals = _reals(active)[:, 0]
                targets *= min(1.0, float(_reals(messages[rank : rank + 1])[0, 0] / totals.max()))
            matcher = Matcher(
                cost=self.cost,
                max_tokens=self.max_tokens,
                max_patches=self.max_patches,
                max_wait=self.max_wait,
            )
            groups = matcher.match(proposal.groups, window, targets)
        draw = generator(window.seed, window.epoch, window.round, _SHUFFLE)
        return Plan(groups.take(draw.permutation(len(groups))))

    def _all(self, groups: Groups, messages: Int64Array) -> Groups:
        """All that is left, in as many steps as the rank with most groups needs."""
        no_limit = np.zeros(len(messages), np.int64)
        count = alignment_target(messages[:, _GROUPS], messages[:, _SAMPLES], no_limit)
        return align(groups, count)[0]


def _reals(messages: Int64Array) -> npt.NDArray[np.float64]:
    """[ranks, 1 + quantiles] total cost and quantiles, which travel as the bits of an integer."""
    reals: npt.NDArray[np.float64] = np.ascontiguousarray(messages[:, _TOTAL:]).view(np.float64)
    return reals


def _targets(messages: Int64Array, steps: int) -> npt.NDArray[np.float64]:
    """[steps] evenly spaced quantiles of all ranks' costs, largest first."""
    pool = np.sort(_reals(messages)[:, 1:], axis=None)[::-1]
    targets: npt.NDArray[np.float64] = pool[
        (2 * np.arange(steps) + 1) * len(pool) // (2 * steps)
    ].copy()
    return targets
