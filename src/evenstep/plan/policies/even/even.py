"""`Even`: equal cost on every rank in every step. The policy to use.

Ranks wait for the one whose group costs most, so a step is well spent if all cost the same. Each
round:

1. Each rank forms the groups of its most urgent samples, old ones and such of which few make a
   group, and sends what they cost and how urgent they are: at most 16, whatever the buffer.
2. The most urgent of all ranks are the steps of the round, and their costs its *targets*, the same
   on every rank.
3. Each rank takes for every step, the costliest first, the run of its sorted samples that comes
   closest to the target from below with little padding: see `padded_runs`. What is lost is what a
   group stays below its target; it does not grow with the number of ranks, as it would if the
   largest of many deviations counted.
4. Each rank looks for each step's run in another part of its samples, so that short, middle and
   long ones meet, as in a random batch. Steps are shuffled, alike on all ranks. Where a rank holds
   back more long samples than came, or fewer, both the urgency and the choice of runs make up for
   it: see `padded_round.drift`.

A single rank whose updates have several steps has no other to meet: it trains on all of its window.

A round takes an eighth of the window, so that there is always a choice. At the end of an epoch all
ranks place all that they have in equally many steps: see `last_runs`. Where ranks share one stream,
they are dealt samples on demand, so that they hold equal cost then.

Packed groups are formed likewise, by other means. Any samples may lie in one group, so full groups
can cost nearly the same, except those with the longest samples. Each rank sends quantiles of the
most even costs that full groups of its window can have, from which the targets follow;
`fill_packed` makes groups that hold `max_tokens` and cost their target. A round takes half the
window, and what is left at the end is packed at once, in as many groups as the rank with most of it
needs: see `drain_packed`.

No sample waits for ever: see `Even.max_wait`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, MemoryLimit, PaddedTokenCost, VisionLanguageCost
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policies.even.drain_packed import first_fit, next_fit, share_out
from evenstep.plan.policies.even.fill_packed import (
    CostSplit,
    PackedStepFiller,
    even_costs,
    even_sums,
)
from evenstep.plan.policies.even.fill_two_parts import TwoPartFiller
from evenstep.plan.policies.even.padded_round import PaddedRound
from evenstep.plan.policies.even.sorted_window import vision_costs
from evenstep.plan.policies.even.two_part_round import TwoPartRound
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator

_QUANTILES = 16
_WINDOW = 96
"""Groups that a window should hold: with fewer there is less choice, and more padding."""
_PADDED_WAIT, _PACKED_WAIT = 32, 5
"""Rounds after which a sample is emitted for certain."""

# Columns of a message of packed groups.
_STEPS, _GROUPS, _SAMPLES, _EXHAUSTED, _TOTAL, _COSTS = range(6)
_VISION = _COSTS + _QUANTILES
"""The vision part's quantiles, where the cost has two parts."""


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
    max_images: int | None = field(default=None, kw_only=True)
    """Images, videos and sounds per group; a single sample above it stays alone."""
    max_wait: int | None = field(default=None, kw_only=True)
    """After this many rounds in the window the oldest sample is emitted for certain, at the price
    of some imbalance. So every sample is emitted within ``max_wait + window size`` rounds. None is
    32, or 5 where `packed`: a round takes an eighth of the window, or half of it, so that is about
    four windows, or three; and as the oldest go first, in practice no sample waits 3 rounds more.
    Much lower values cannot be kept, as a window lasts 8 rounds, or 2."""
    cost: Cost = field(default=PaddedTokenCost(), kw_only=True)
    """The cost that is made equal; of a `VisionLanguageCost`, each of its parts. The memory limits
    hold besides."""
    packed: bool = field(default=False, kw_only=True)
    """Groups are collated without padding, as `PackCollator` does: any samples go together, fill
    `max_tokens`, and cost what ``cost(shapes, packed=True)`` says."""
    spread: bool = field(default=True, kw_only=True)
    """Padded groups of like cost are dealt out so that a step holds long and short samples, as a
    random batch does: see `evenstep.plan.groups.spread`. False lets like lengths meet."""

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens)
        check_at_least(
            1,
            max_tokens=self.max_tokens,
            target_tokens=self.target_tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
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
            max_tokens=self.max_tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
            packed=self.packed,
        )

    @property
    def counts_patches(self) -> bool:
        limited = self.max_patches is not None or self.max_images is not None
        return limited or super().counts_patches

    @property
    def deals_on_demand(self) -> bool:
        return True

    @property
    def window_tokens(self) -> int:
        return _WINDOW * (self.target_tokens or self.max_tokens)

    def options(self) -> Mapping[str, Any]:
        options = dict(super().options())
        if self.max_images is None:
            del options["max_images"]  # states that were saved before it was an option lack it
        return options

    def propose(self, window: Window) -> Proposal:
        if self.packed:
            return self._propose_packed(window)
        return self._round().propose(window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        if not self.packed:
            return self._round().settle(proposal.window, messages, rank)
        groups = self._settle_packed(proposal, messages)
        window = proposal.window
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_ORDER)
        return Plan(groups.take(draw.permutation(len(groups))))

    @property
    def _due(self) -> int:
        if self.max_wait is None:
            return _PACKED_WAIT if self.packed else _PADDED_WAIT
        return self.max_wait

    def _round(self) -> PaddedRound:
        options: dict[str, Any] = {
            "cost": self.cost,
            "max_tokens": self.max_tokens,
            "target_tokens": self.target_tokens or self.max_tokens,
            "max_patches": self.max_patches,
            "max_images": self.max_images,
            "max_wait": self._due,
            "spread": self.spread,
        }
        if self.max_images is None and not isinstance(self.cost, VisionLanguageCost):
            return PaddedRound(**options)
        return TwoPartRound(**options)

    @property
    def _language(self) -> Cost:
        """The part of the cost that the lengths of samples decide."""
        return self.cost.language if isinstance(self.cost, VisionLanguageCost) else self.cost

    def _propose_packed(self, window: Window) -> Proposal:
        cut = first_fit if window.exhausted else next_fit
        groups = cut(window, self.limit)
        full = self._full_groups(window)
        split = CostSplit.of(window.lengths, self._language)
        count = min(math.ceil(full), len(window))
        costs = even_costs(split, float(window.lengths.sum()) / full, count)
        numbers = [max(1, int(full / 2)), len(groups), len(window), int(window.exhausted)]
        message = _message(numbers, split.added.sum(), costs)
        if isinstance(self.cost, VisionLanguageCost):
            parts = even_sums(vision_costs(window, self.cost), count)
            message = np.concatenate([message, _quantiles(parts).view(np.int64)])
        return Proposal(message, groups, window)

    def _full_groups(self, window: Window) -> float:
        """How many groups the samples of a window make if all are as full as a limit allows."""
        full = float(window.lengths.sum()) / self.max_tokens
        if window.patches is not None and self.max_patches is not None:
            counted = np.minimum(window.patches, self.max_patches)  # one above it stays alone
            full = max(full, float(counted.sum()) / self.max_patches)
        if window.images is not None and self.max_images is not None:
            counted = np.minimum(window.images, self.max_images)
            full = max(full, float(counted.sum()) / self.max_images)
        return full

    def _settle_packed(self, proposal: Proposal, messages: Int64Array) -> Groups:
        window = proposal.window
        active = messages[messages[:, _GROUPS] > 0]
        split = CostSplit.of(window.lengths, self._language)
        vision = vision_costs(window, self.cost)
        if active[:, _EXHAUSTED].all():
            steps = min(int(active[:, _GROUPS].max()), int(active[:, _SAMPLES].min()))
            return share_out(
                window,
                split.added,
                proposal.groups,
                steps,
                self.limit,
                vision=vision,
            )
        # Where patches are the tighter limit, no group should take more than its share of tokens.
        tokens = math.ceil(float(window.lengths.sum()) / self._full_groups(window))
        limit = replace(self.limit, max_tokens=min(tokens, self.max_tokens))
        targets = _targets(active)
        filler = PackedStepFiller(limit=limit, max_wait=self._due)
        if isinstance(self.cost, VisionLanguageCost):
            wanted = _spaced(_reals(active[:, _VISION:]), len(targets))
            filler = TwoPartFiller(limit=limit, max_wait=self._due, vision=vision, wanted=wanted)
        return filler.fill(window, split, targets)


def _message(numbers: list[int], total: float, costs: Float64Array) -> Int64Array:
    """
    Args:
        numbers: columns up to `_TOTAL`.
        total: cost of all samples of the rank.
        costs: [groups] sorted; their quantiles are sent.
    """
    reals = np.concatenate([[total], _quantiles(costs)])
    return np.concatenate([np.array(numbers, np.int64), reals.view(np.int64)])


def _quantiles(costs: Float64Array) -> Float64Array:
    """[quantiles] of [groups] sorted costs."""
    quantiles: Float64Array = costs[
        (2 * np.arange(_QUANTILES) + 1) * len(costs) // (2 * _QUANTILES)
    ]
    return quantiles


def _reals(columns: Int64Array) -> Float64Array:
    """[ranks, k] real numbers, which travel as the bits of integers."""
    reals: Float64Array = np.ascontiguousarray(columns).view(np.float64)
    return reals


def _spaced(quantiles: Float64Array, steps: int) -> Float64Array:
    """[steps] evenly spaced quantiles of all ranks' costs, largest first."""
    pool = np.sort(quantiles, axis=None)[::-1]
    spaced: Float64Array = pool[(2 * np.arange(steps) + 1) * len(pool) // (2 * steps)].copy()
    return spaced


def _targets(messages: Int64Array) -> Float64Array:
    """[steps] evenly spaced quantiles of all ranks' costs, largest first."""
    steps = int(min(messages[:, _STEPS].min(), messages[:, _SAMPLES].min()))
    return _spaced(_reals(messages[:, _COSTS:_VISION]), steps)
