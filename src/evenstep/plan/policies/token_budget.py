"""`TokenBudget`: ODB's policy. Groups of nearly equal padded size, equally many on every rank.

Two rules are added to the paper's. A sample longer than the budget is refused, so `max_tokens` is a
hard cap. And no sample waits for ever: see `TokenBudget.max_wait`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, MemoryLimit
from evenstep.plan.groups import (
    Groups,
    align,
    alignment_target,
    like_costs,
    mean_lengths,
    rounds_overdue,
    spread,
    token_budget_groups,
)
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least, check_given

_WINDOW = 160
"""Groups that a window should hold."""
_QUANTILES = 16
"""Of the costs of a rank's groups, which tell all ranks what the steps cost."""
_LIKE = 0.02
"""Share by which the costs of steps may differ that exchange groups."""


@dataclass(frozen=True)
class TokenBudget(Policy):
    """Online dynamic batching under a padded-token budget (ODB, sections 2.2 and 2.3)."""

    max_tokens: int
    """Token budget of one group after padding: samples x longest."""
    max_patches: int | None = field(default=None, kw_only=True)
    """Vision patches per group; a single sample above it stays alone."""
    max_wait: int = field(default=4, kw_only=True)
    """After this many rounds of being returned to the buffer, a sample goes before all younger
    ones. As each round plans at least one group, every sample is emitted within
    ``max_wait + window size`` rounds, and within ``max_wait + 1`` where the overdue groups fit in
    one round."""
    spread: bool = field(default=True, kw_only=True)
    """Among the steps of a round that cost about the same on all ranks, each rank deals its groups
    so that long and short ones meet, as in a random batch: see `evenstep.plan.groups`. False
    is the paper: groups of like length meet, in random order."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens, max_wait=self.max_wait)
        check_at_least(1, max_tokens=self.max_tokens, max_patches=self.max_patches)
        check_at_least(0, max_wait=self.max_wait)

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(max_tokens=self.max_tokens, max_patches=self.max_patches)

    @property
    def window_tokens(self) -> int:
        return _WINDOW * self.max_tokens

    def propose(self, window: Window) -> Proposal:
        groups = token_budget_groups(
            window.lengths,
            self.max_tokens,
            patches=window.patches,
            max_patches=self.max_patches,
        )
        message = np.array([len(groups), len(window)], np.int64)
        if self.spread:
            shapes = groups.shapes(window.lengths, window.vision)
            costs = np.sort(self.cost(shapes, packed=False))[::-1]
            levels = (2 * np.arange(_QUANTILES) + 1) * len(costs) // (2 * _QUANTILES)
            message = np.concatenate([message, costs[levels].astype(np.float64).view(np.int64)])
        return Proposal(message, groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window = proposal.window
        counts, samples = messages[:, 0], messages[:, 1]
        target = alignment_target(counts, samples)
        overdue = None
        if len(proposal.groups) > target and window.ages.max(initial=0) >= self.max_wait:
            overdue = rounds_overdue(proposal.groups, window.ages, self.max_wait)
        groups = align(proposal.groups, target, overdue)
        draw = generator(window.seed, window.epoch, window.round, RandomStream.TOKEN_BUDGET_ORDER)
        if self.spread:
            return Plan(groups.take(self._spread(groups, window, messages, rank, draw)))
        return Plan(groups.take(draw.permutation(target)))

    def _spread(
        self,
        groups: Groups,
        window: Window,
        messages: Int64Array,
        rank: int,
        draw: np.random.Generator,
    ) -> Int64Array:
        """The order of this rank's groups in which costs meet, and lengths mix."""
        active = messages[:, 0] > 0
        costs = self.cost(groups.shapes(window.lengths, window.vision), packed=False)
        costliest = np.argsort(-costs, kind="stable")
        quantiles = np.ascontiguousarray(messages[active, 2:]).view(np.float64).mean(axis=0)
        levels = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
        usual = np.interp((np.arange(len(groups)) + 0.5) / len(groups), levels, quantiles)
        order = spread(
            mean_lengths(groups, window.lengths)[costliest],
            like_costs(usual, _LIKE),
            rank=int(active[:rank].sum()),
            ranks=int(active.sum()),
            accumulate=window.accumulate,
            step=window.step,
            draw=draw,
        )
        return costliest[order]
