"""What a token and a pair of tokens cost, from how long the steps of a run took.

A step lasts as long as its slowest rank, and only that time is seen. So for each ratio of the two
costs the slowest rank of every step is found anew, and a line is fitted through the times: its
slope is the cost of a token, its constant what a step costs besides. The ratio whose line fits best
is taken. Evaluations and checkpoints between steps weigh little, as the fit is robust.

Pairs are rows x longest² in padded groups, and the sum of squared lengths in packed ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost.models import FittedCost

_RATIOS = np.concatenate([[0.0], 1 / np.geomspace(300_000, 1_000, 86)])
_NOISE = 0.02
"""Share of a step's time by which times scatter."""
_MOST_CONSTANT = 0.15
"""Share of a step's time that what it costs besides may have."""
_ROUNDS = 4
_PRIOR = 0.4
"""How far, as a logarithm, the ratio is expected from that of the cost in use."""


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Steps that were timed: each by itself, or those of an update together."""

    tokens: Float64Array
    """[steps, ranks] as computed: with padding."""
    pairs: Float64Array
    """[steps, ranks]"""
    begins: Int64Array
    """[times] the first step of each."""
    seconds: Float64Array
    """[times]"""

    def slowest(self, ratio: float) -> Float64Array:
        """[times] tokens of the slowest rank, a pair counting as `ratio` of one."""
        return np.add.reduceat((self.tokens + ratio * self.pairs).max(axis=1), self.begins)


@dataclass(frozen=True, kw_only=True)
class FittedTimes:
    """What times tell."""

    cost: FittedCost
    error: float
    """Median of how far times are from it, as a share."""
    surer: float
    """How much likelier it is than the cost in use: the logarithm of the ratio."""


def imbalance_of(cost: FittedCost, tokens: Float64Array, pairs: Float64Array) -> float:
    """Cost of the slowest ranks over the mean.

    Args:
        tokens, pairs: [steps, ranks] as of `StepTimes`.
    """
    costs = cost.per_group + cost.per_token * tokens + cost.per_pair * pairs
    return float(costs.max(axis=-1).sum() / costs.mean(axis=-1).sum())


def fit_times(times: StepTimes, ratio: float) -> FittedTimes:
    """The cost that explains times best.

    Args:
        times: some 100 or more.
        ratio: cost of a pair over that of a token, of the cost in use; 0 if it has no pairs.
    """
    ratios = np.append(_RATIOS, ratio)
    slowest = np.stack([times.slowest(each) for each in ratios.tolist()])  # [ratios, times]
    slopes, constants = _lines(slowest / times.seconds, 1 / times.seconds)
    missed = slopes[:, None] * slowest / times.seconds + constants[:, None] / times.seconds - 1
    losses = np.log1p((missed / (1.5 * _NOISE)) ** 2).sum(axis=1)
    used = losses[-1]
    if ratio > 0:
        away = np.log(np.maximum(ratios, 1e-9) / ratio) / _PRIOR
        losses = losses + np.minimum(away**2 / 2, 20.0)
    best = int(losses.argmin())
    steps = np.diff(np.append(times.begins, len(times.tokens))).mean()
    slope = float(slopes[best])
    return FittedTimes(
        cost=FittedCost(
            per_group=float(constants[best]) / float(steps),
            per_token=slope,
            per_pair=slope * float(ratios[best]),
        ),
        error=float(np.median(np.abs(missed[best]))),
        surer=float(used - losses[best]),
    )


def _lines(x: Float64Array, v: Float64Array) -> tuple[Float64Array, Float64Array]:
    """[ratios] slope and constant of each, by weighted least squares of ``slope x + constant v`` to
    1, in which what is far off counts little.

    Args:
        x: [ratios, times] tokens of the slowest rank by the time.
        v: [times] 1 by the time.
    """
    weights = np.ones_like(x)
    slopes = constants = np.zeros(len(x))
    for _ in range(_ROUNDS):
        xx, xv, vv = (weights * x * x).sum(1), (weights * x * v).sum(1), (weights * v * v).sum(1)
        sx, sv = (weights * x).sum(1), (weights * v).sum(1)
        constants = (sv * xx - sx * xv) / np.maximum(xx * vv - xv * xv, 1e-300)
        constants = np.clip(constants, 0.0, _MOST_CONSTANT * sv / vv)
        slopes = (sx - constants * xv) / xx
        missed = np.abs(slopes[:, None] * x + constants[:, None] * v - 1)
        scale = 1.4826 * np.median(missed, axis=1) + 1e-9
        weights = 1 / (1 + (missed / (3 * scale[:, None])) ** 2)
    return slopes, constants
