"""Packed groups for a cost of two parts: filled as for one, then exchanged until both fit.

A packed group may hold any samples, so each can have its share of the vision cost: all targets are
the same, except for a sample that alone has more than its group's share. A group is filled
to its tokens and its language cost as `fill_packed` does; then members are exchanged for samples of
about as many tokens that have more vision cost, or less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.plan.policies.even.exchanges import Goal, exchange
from evenstep.plan.policies.even.fill_packed import UNFILLED, PackedSamples, PackedStepFiller

_POOL = 256
"""Samples that members may be exchanged for, evenly spaced in length."""
_EXCHANGES = 10
_ENOUGH = 2e-3
_BELOW = np.array([UNFILLED, 1.0, 3.0])
_ABOVE = np.array([0.0, 2.0, 6.0])
"""What a group loses for each share of its tokens, language cost and vision cost that it is off.
Fewer samples have vision cost, so it has to count more."""


@dataclass(frozen=True, kw_only=True)
class TwoPartFiller(PackedStepFiller):
    """Fills steps with groups that are full and cost their targets in both parts."""

    vision: Float64Array
    """[samples] of the window, cost of each for the vision tower."""
    wanted: Float64Array
    """[steps] such cost that each step's group should come close to."""

    def refined(
        self,
        group: Int64Array,
        samples: PackedSamples,
        by_length: Int64Array,
        free: BoolArray,
        *,
        target: float,
        step: int,
    ) -> Int64Array:
        others = by_length[free[by_length]]
        if len(others) > _POOL:
            others = others[np.arange(_POOL) * len(others) // _POOL]
        tokens = samples.needs[0].astype(np.float64)
        amounts = np.stack([tokens[:-1], samples.added[:-1], self.vision])
        wanted = np.array([float(self.limit.max_tokens), target, self.wanted[step]])
        # [quantities] what a share is of.
        unit = np.array([self.limit.max_tokens, target, self.wanted.mean()])
        unit[unit <= 0] = 1.0
        made, _ = exchange(
            group,
            others,
            amounts,
            # More tokens than fit are no choice: see `limited`.
            Goal(wanted, _BELOW / unit, _ABOVE / unit),
            kept=group[:1],
            limited=tuple(
                (need[:-1], limit) for need, limit in zip(samples.needs, samples.limits.tolist())
            ),
            enough=_ENOUGH,
            most=_EXCHANGES,
        )
        free[group] = True
        return made
