"""Exchanges of two samples that bring a group closer to all that it should come to.

A group misses some of each of several quantities, such as tokens and vision cost. Every member is
tried against every sample outside; the exchange that loses least is made, and so on while it
helps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array

Limited = tuple[tuple[Int64Array, int], ...]
"""For each limit what every sample takes of it, and how much a group may."""

_WORTH = 1e-4
"""Loss that an exchange has to save."""


@dataclass(frozen=True)
class Goal:
    """How much of each quantity a group should come to. Arrays [quantities]."""

    amounts: Float64Array
    below: Float64Array
    """Loss for each unit that is missing."""
    above: Float64Array
    """Loss for each unit that is too much."""

    def loss(self, missing: Float64Array) -> Float64Array:
        """
        Args:
            missing: [quantities, ...] negative for too much.

        Returns:
            [...] what is lost by all quantities together.
        """
        shape = (-1, *[1] * (missing.ndim - 1))
        lost = np.maximum(self.below.reshape(shape) * missing, -self.above.reshape(shape) * missing)
        total: Float64Array = lost.sum(axis=0)
        return total


def exchange(
    members: Int64Array,
    others: Int64Array,
    amounts: Float64Array,
    goal: Goal,
    *,
    kept: Int64Array,
    limited: Limited,
    enough: float,
    most: int,
) -> tuple[Int64Array, float]:
    """
    Args:
        members, others: samples in the group, and those that may come into it.
        amounts: [quantities, samples] what each sample has.
        kept: members that stay.
        enough: loss at which nothing more is tried.
        most: exchanges.

    Returns:
        The members, and what they lose.
    """
    missing = goal.amounts - amounts[:, members].sum(axis=1)
    needs = [(need, limit - int(need[members].sum())) for need, limit in limited]
    now = float(goal.loss(missing))
    stay = np.isin(members, kept)
    movable, others = members[~stay], others.copy()
    for _ in range(most):
        if now <= enough or not len(movable) or not len(others):
            break
        # [quantities, movable, others]
        left = (missing[:, None] + amounts[:, movable])[:, :, None] - amounts[:, None, others]
        lost = goal.loss(left)
        for need, spare in needs:
            lost[need[others][None, :] - need[movable][:, None] > spare] = np.inf
        out, into = divmod(int(lost.argmin()), lost.shape[1])
        if lost[out, into] > now - _WORTH:
            break
        now, missing = float(lost[out, into]), left[:, out, into]
        gone, come = movable[out], others[into]
        needs = [(need, spare + int(need[gone] - need[come])) for need, spare in needs]
        movable[out], others[into] = come, gone
    return np.concatenate([members[stay], movable]), now
