"""`Even`: equal cost on every rank in every step. The policy to use.

Ranks wait for the one whose group costs most, so a step is well spent if all cost the same. Each
round:

1. Each rank groups its window as `TokenBudget` does, and picks the groups with its oldest samples,
   half of them. It sends 21 numbers, quantiles of their costs among them, whatever the buffer.
2. The pooled quantiles of all ranks are the steps' *targets*, the same on every rank: a sample of
   what groups cost here, so that there is a fitting step for long samples and for short ones.
3. Each rank fills every step with samples that cost as much as its target, and no more: see
   `match_padded`. What is lost is what a group stays below its target; it does not grow with the
   number of ranks, as it would if the largest of many deviations counted.
4. Steps are shuffled, alike on all ranks, so their order says nothing about length.

Half the window stays, so that there is always a choice. At the end of the epoch there is none: then
a rank that has less left scales its targets down, so that all run out together.

Packed groups are formed likewise, by other means. Any samples may lie in one group, so full groups
can cost nearly the same, except those with the longest samples. The quantiles are of the most even
costs that full groups of the window can have; `fill_packed` makes groups that hold `max_tokens` and
cost their target; and what is left at the end is packed at once, in as many groups as the rank with
most of it needs: see `drain_packed`. Ranks that hold fewer tokens then fill their groups less, as
with any policy that leaves samples on their rank.

No sample waits for ever: see `Even.max_wait`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, MemoryLimit, PaddedTokenCost
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.groups.alignment import align, alignment_target
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.token_budget_groups import token_budget_groups
from evenstep.plan.policies.even.drain_packed import first_fit, next_fit, share_out
from evenstep.plan.policies.even.fill_packed import CostSplit, PackedStepFiller, even_costs
from evenstep.plan.policies.even.match_padded import PaddedStepFiller, oldest_of
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator

_QUANTILES = 16
_LAST = 24  # groups; with no more than that left on any rank, all are emitted in one round

# Columns of a message.
_STEPS, _GROUPS, _SAMPLES, _EXHAUSTED, _TOTAL = range(5)


@dataclass(frozen=True)
class Even(Policy):
    """Groups of equal cost on all ranks, under a token budget."""

    max_tokens: int
    """No group has more tokens as laid out in memory: after padding (samples x longest), or real
    tokens where `packed`. A longer sample is refused."""
    target_tokens: int | None = field(default=None, kw_only=True)
    """Tokens that padded groups should have; None is `max_tokens`. Set it where a few samples are
    so long that room for them is room for hundreds of the others: a window would hold few groups of
    those, and pad them. A longer sample is a step by itself, which the other ranks match."""
    max_patches: int | None = field(default=None, kw_only=True)
    """Vision patches per group; a single sample above it stays alone."""
    max_wait: int = field(default=5, kw_only=True)
    """After this many rounds in the window the oldest sample is emitted for certain, at the price
    of some imbalance. So every sample is emitted within ``max_wait + window size`` rounds; as half
    the window goes in each round, the oldest first, in practice within ``max_wait + 3``, where no
    rank runs out long before the others."""
    cost: Cost = field(default=PaddedTokenCost(), kw_only=True)
    """The cost that is made equal. The memory limit holds besides."""
    packed: bool = field(default=False, kw_only=True)
    """Groups are collated without padding, as `PackCollator` does: any samples go together, fill
    `max_tokens`, and cost what ``cost(shapes, packed=True)`` says."""

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens, max_wait=self.max_wait)
        check_at_least(
            1,
            max_tokens=self.max_tokens,
            target_tokens=self.target_tokens,
            max_patches=self.max_patches,
        )
        check_at_least(0, max_wait=self.max_wait)
        if self.target_tokens is not None and (self.packed or self.target_tokens > self.max_tokens):
            raise ConfigurationError(
                f"target_tokens={self.target_tokens} must be at most max_tokens="
                f"{self.max_tokens}, and is for padded groups; packed ones fill max_tokens"
            )

    @property
    def max_length(self) -> int | None:
        return self.max_tokens

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(
            max_tokens=self.max_tokens, max_patches=self.max_patches, packed=self.packed
        )

    @property
    def counts_patches(self) -> bool:
        return self.max_patches is not None

    def propose(self, window: Window) -> Proposal:
        return self._propose_packed(window) if self.packed else self._propose_padded(window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        if self.packed:
            groups = self._settle_packed(proposal, messages)
        else:
            groups = self._settle_padded(proposal, messages, rank)
        window = proposal.window
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_ORDER)
        return Plan(groups.take(draw.permutation(len(groups))))

    def _propose_padded(self, window: Window) -> Proposal:
        groups = token_budget_groups(
            window.lengths,
            self.target_tokens or self.max_tokens,
            patches=window.patches,
            max_patches=self.max_patches,
        )
        costs = self.cost(groups.shapes(window.lengths), packed=False)
        steps = -(-len(groups) // 2)
        chosen = np.sort(costs[np.argsort(oldest_of(groups), kind="stable")[:steps]])
        numbers = [steps, len(groups), len(window), int(window.exhausted)]
        return Proposal(_message(numbers, costs.sum(), chosen), groups, window)

    def _settle_padded(self, proposal: Proposal, messages: Int64Array, rank: int) -> Groups:
        active = messages[messages[:, _GROUPS] > 0]
        ending = bool(active[:, _EXHAUSTED].all())
        if ending and active[:, _GROUPS].max() <= _LAST:
            return self._all(proposal.groups, messages)
        targets = _targets(active)
        if ending:
            own, most = _reals(messages)[rank, 0], _reals(active)[:, 0].max()
            if own < most:
                targets *= own / most
        matcher = PaddedStepFiller(
            cost=self.cost,
            max_tokens=self.max_tokens,
            max_patches=self.max_patches,
            max_wait=self.max_wait,
        )
        return matcher.match(proposal.groups, proposal.window, targets)

    def _propose_packed(self, window: Window) -> Proposal:
        cut = first_fit if window.exhausted else next_fit
        groups = cut(window, self.max_tokens, self.max_patches)
        full = self._full_groups(window)
        split = CostSplit.of(window.lengths, self.cost)
        count = min(math.ceil(full), len(window))
        costs = even_costs(split, float(window.lengths.sum()) / full, count)
        numbers = [max(1, int(full / 2)), len(groups), len(window), int(window.exhausted)]
        return Proposal(_message(numbers, split.added.sum(), costs), groups, window)

    def _full_groups(self, window: Window) -> float:
        """How many groups the samples of a window make if all are as full as a limit allows."""
        full = float(window.lengths.sum()) / self.max_tokens
        if window.patches is not None and self.max_patches is not None:
            counted = np.minimum(window.patches, self.max_patches)  # one above it stays alone
            full = max(full, float(counted.sum()) / self.max_patches)
        return full

    def _settle_packed(self, proposal: Proposal, messages: Int64Array) -> Groups:
        window = proposal.window
        active = messages[messages[:, _GROUPS] > 0]
        split = CostSplit.of(window.lengths, self.cost)
        if active[:, _EXHAUSTED].all():
            steps = min(int(active[:, _GROUPS].max()), int(active[:, _SAMPLES].min()))
            return share_out(
                window,
                split.added,
                proposal.groups,
                steps,
                max_tokens=self.max_tokens,
                max_patches=self.max_patches,
            )
        filler = PackedStepFiller(
            # Where patches are the tighter limit, no group should take more than its share.
            tokens=min(
                math.ceil(float(window.lengths.sum()) / self._full_groups(window)), self.max_tokens
            ),
            max_patches=self.max_patches,
            max_wait=self.max_wait,
        )
        return filler.fill(window, split, _targets(active))

    def _all(self, groups: Groups, messages: Int64Array) -> Groups:
        """All that is left, in as many steps as the rank with most groups needs."""
        no_limit = np.zeros(len(messages), np.int64)
        count = alignment_target(messages[:, _GROUPS], messages[:, _SAMPLES], no_limit)
        return align(groups, count)[0]


def _message(numbers: list[int], total: float, costs: npt.NDArray[np.float64]) -> Int64Array:
    """
    Args:
        numbers: columns up to `_TOTAL`.
        total: cost of all samples of the rank.
        costs: [groups] sorted; their quantiles are sent.
    """
    ranks = (2 * np.arange(_QUANTILES) + 1) * len(costs) // (2 * _QUANTILES)
    reals = np.concatenate([[total], costs[ranks]])
    return np.concatenate([np.array(numbers, np.int64), reals.view(np.int64)])


def _reals(messages: Int64Array) -> npt.NDArray[np.float64]:
    """[ranks, 1 + quantiles] total cost and quantiles, which travel as the bits of an integer."""
    reals: npt.NDArray[np.float64] = np.ascontiguousarray(messages[:, _TOTAL:]).view(np.float64)
    return reals


def _targets(messages: Int64Array) -> npt.NDArray[np.float64]:
    """[steps] evenly spaced quantiles of all ranks' costs, largest first."""
    steps = int(min(messages[:, _STEPS].min(), messages[:, _SAMPLES].min()))
    pool = np.sort(_reals(messages)[:, 1:], axis=None)[::-1]
    targets: npt.NDArray[np.float64] = pool[
        (2 * np.arange(steps) + 1) * len(pool) // (2 * steps)
    ].copy()
    return targets
