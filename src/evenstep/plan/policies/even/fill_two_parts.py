"""Packed groups for a cost of two parts: filled as for one, then exchanged until both fit.

A packed group may hold any samples, so each can have its share of the vision cost: all targets are
the same, except for a sample that alone has more than its group's share. Members of a full group
are exchanged for samples that count about as much and have more vision cost, or less.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.policies.even.exchanges import Goal, exchange

_QUANTILES = 16
_POOL = 256
"""Samples that members may be exchanged for, evenly spaced in length."""
_EXCHANGES = 10
_ENOUGH = 2e-3
_BELOW = np.array([3.0, 3.0])
_ABOVE = np.array([0.0, 6.0])
"""What a group loses for each share of its time and of its vision cost that it is off. Fewer
samples have vision cost, so it has to count more; more time than fits is no choice."""


def vision_quantiles(vision: Float64Array, groups: int) -> Int64Array:
    """[16] bits of the vision costs of groups if they are as even as can be, largest first.

    The samples with most come to lie in different groups. Those with more than the mean of what is
    left for the other groups make theirs cost more; the others share the rest evenly: 9, 4, 1, 1, 0
    become 9, 4, 2 in three groups.
    """
    values = np.sort(vision)[::-1]
    largest = values[:groups]
    # [groups] with the g largest in groups by themselves, what the others share.
    others = np.arange(groups, 0, -1)
    rest = values.sum() - np.concatenate([[0.0], np.cumsum(largest[:-1])])
    level = (rest / others).min()
    sums = np.maximum(largest, level)
    places = (2 * np.arange(_QUANTILES) + 1) * groups // (2 * _QUANTILES)
    bits: Int64Array = sums[places].astype(np.float64).view(np.int64)
    return bits


def vision_targets(quantiles: Int64Array, steps: int) -> Float64Array:
    """[steps] evenly spaced quantiles of all ranks' vision costs, largest first.

    Args:
        quantiles: [ranks, 16] `vision_quantiles` of each.
    """
    pool = np.sort(np.ascontiguousarray(quantiles).view(np.float64), axis=None)[::-1]
    spaced: Float64Array = pool[(2 * np.arange(steps) + 1) * len(pool) // (2 * steps)].copy()
    return spaced


@dataclass(frozen=True, kw_only=True)
class VisionParts:
    """What groups should cost the vision tower."""

    vision: Float64Array
    """[samples] of the window, cost of each."""
    wanted: Float64Array
    """[steps] of the groups."""

    def exchanged(
        self,
        group: Int64Array,
        others: Int64Array,
        needs: Int64Array,
        limits: Int64Array,
        step: int,
    ) -> Int64Array:
        """The group of a step, or what comes of it by exchanges.

        Args:
            group: positions of its samples; the first stays.
            others: positions of those that are free, shortest first.
            needs: [limits, samples] what each takes of each limit, time first.
            limits: [limits] of this step.
        """
        if len(others) > _POOL:
            others = others[np.arange(_POOL) * len(others) // _POOL]
        amounts = np.stack([needs[0].astype(np.float64), self.vision])
        wanted = np.array([float(limits[0]), self.wanted[step]])
        # [quantities] what a share is of.
        unit = np.array([float(limits[0]), self.wanted.mean()])
        unit[unit <= 0] = 1.0
        made, _ = exchange(
            group,
            others,
            amounts,
            Goal(wanted, _BELOW / unit, _ABOVE / unit),
            kept=group[:1],
            limited=tuple(zip(needs, limits.tolist())),
            enough=_ENOUGH,
            most=_EXCHANGES,
        )
        return made
