"""`SequencePacking`: whole samples laid end to end until the budget is full, without padding.

Each rank packs its window; the groups with most room wait for the next window, so that packing
windows loses next to nothing against packing the whole data set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, MemoryLimit
from evenstep.plan.groups import align, alignment_target, rounds_overdue
from evenstep.plan.partition.bins import best_fit_decreasing
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator
from evenstep.plan.value_checks import check_at_least, check_given

# Columns of a message.
_GROUPS, _SAMPLES, _EXHAUSTED = range(3)


@dataclass(frozen=True)
class SequencePacking(Policy):
    """Groups of up to `max_tokens` real tokens by best-fit decreasing, collated without padding."""

    max_tokens: int
    """No group has more real tokens. A longer sample is refused."""
    max_wait: int = field(default=4, kw_only=True)
    """After this many rounds in the window, a sample's group goes before fuller ones. As each round
    plans at least one group, every sample is emitted within ``max_wait + window size`` rounds, and
    within ``max_wait + 1`` where the overdue groups fit in one round."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)
    """Groups of like cost meet in a step, which matters where cost is not the number of tokens."""

    packed = True

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens, max_wait=self.max_wait)
        check_at_least(1, max_tokens=self.max_tokens)
        check_at_least(0, max_wait=self.max_wait)

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(max_tokens=self.max_tokens, packed=True)

    def propose(self, window: Window) -> Proposal:
        groups = best_fit_decreasing(
            np.minimum(window.lengths, self.max_tokens),  # a longer one is a group by itself
            self.max_tokens,
        )
        message = np.array([len(groups), len(window), window.exhausted], np.int64)
        return Proposal(message, groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        window, groups = proposal.window, proposal.groups
        target = _steps(messages)
        if len(groups) > target:
            fullest = -groups.shapes(window.lengths).tokens
            overdue = rounds_overdue(groups, window.ages, self.max_wait)
            groups = groups.take(np.lexsort((fullest, -overdue))[:target])
        groups = align(groups, target)
        # In order of cost before the common shuffle, so that groups of like cost meet in a step.
        costs = self.cost(groups.shapes(window.lengths), packed=True)
        order = generator(
            window.seed, window.epoch, window.round, RandomStream.SEQUENCE_PACKING_ROUND
        )
        return Plan(groups.take(np.argsort(-costs, kind="stable")[order.permutation(target)]))


def _steps(messages: Int64Array) -> int:
    """Steps of a round, at least 1 and at most the samples of any rank that has some."""
    counts, samples = messages[:, _GROUPS], messages[:, _SAMPLES]
    active = counts > 0
    if messages[active, _EXHAUSTED].all():
        return alignment_target(counts, samples)
    # Every rank keeps a group or more: its last one is not full, and fills up in the next window.
    return max(int(counts[active].min()) - 1, 1)
