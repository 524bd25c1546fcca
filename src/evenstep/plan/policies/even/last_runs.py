"""The steps of the last window: all that is left, in groups of equal cost and of unlike length.

Once no samples are to come, each rank says which costs its groups come to. Those of long samples
are what they are, while groups of short samples can cost anything. So the steps are asked to cost
what groups of long samples cost, and each rank places all that it has, the longest first: each run
goes to the step whose target it comes closest to, rather to one where the other ranks place samples
of another length.
"""

from __future__ import annotations

import math

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.groups import Groups
from evenstep.plan.policies.even.padded_end import LastSamples
from evenstep.plan.policies.even.padded_runs import ROUNDING, UNDER

OVER = 32.0
"""How much cost above the target counts: all other ranks wait."""
_FLOAT32 = 1e-6
"""Share by which costs may be too low, as ranks tell each other."""
_LEAST = 1e-200
"""In place of a cost of 0: what is divided by it does not overflow."""
_HALVINGS, _EXCHANGES = 14, 500
"""Factors tried for the targets, and pairs of runs that change places, at most."""


def levels(last: LastSamples, target_tokens: int, ranks: int, quantiles: int) -> Float64Array:
    """[quantiles] costs that steps should have so that the longest samples of a rank find their
    place, largest first. The fewer samples a group has, the more its cost counts.

    A sample longer than `target_tokens` is a group by itself, for which there should be a step on
    each rank, where the others place shorter ones.

    Args:
        last: cut into groups of `target_tokens`.
    """
    cuts = np.array(last.full_cuts(), np.int64)
    full = max(len(cuts) - 2, 1)  # the last group has what was left
    begins, sizes = cuts[:full], np.diff(cuts)[:full]
    single, each = last.costs[:, begins]
    costs = single + (sizes - 1) * each
    long = last.times[begins] > target_tokens
    weights = (single / np.maximum(costs, _LEAST)) ** 2
    total, in_long = float(costs.sum()), float(costs[long].sum())
    if long.any() and float(costs[~long].sum()) > 0:
        each_long = min(float(ranks), total / max(in_long, _LEAST))
        rest = (total - each_long * in_long) / float(costs[~long].mean())
        weights[~long] *= rest / float(weights[~long].sum())
        weights[long] = each_long
    order = np.argsort(-costs, kind="stable")
    until = np.cumsum(weights[order])
    wanted = (np.arange(quantiles) + 0.5) / quantiles * until[-1]
    found: Float64Array = costs[order][np.searchsorted(until, wanted)]
    return found


def targets_of(costs: Float64Array, totals: Float64Array, *, least: int, most: int) -> Float64Array:
    """[steps] what the last steps should cost, largest first.

    Args:
        costs: [ranks, quantiles] `levels` of each rank.
        totals: [ranks] what all of its groups cost.
        least, most: steps that memory asks for, and for which each rank has a sample.
    """
    pool = np.sort(costs, axis=None)[::-1]
    held = float(totals.max()) / max(float(pool.mean()), _LEAST)
    steps = max(least, math.ceil(held * (1 - _FLOAT32)))
    steps = min(steps, most)
    return pool[(2 * np.arange(steps) + 1) * len(pool) // (2 * steps)].astype(np.float64)


def fill_last(
    last: LastSamples,
    targets: Float64Array,
    wishes: Float64Array,
    pull: float,
    parts: Int64Array | None = None,
) -> Groups:
    """A group for each target, with all samples unless memory makes more groups of them.

    All targets are raised or lowered by one factor, the lowest with which they hold all samples.

    Args:
        last: at least as many samples as targets.
        targets: [steps] costs.
        wishes: [steps] where in the sorted window each run should be, as a share of its tokens, 0
            being the shortest samples.
        pull: loss of a run that is as far as can be from its wish.
        parts: [steps] the groups of the same part count together; None is a part for each.
    """
    alone = parts is None
    parts = np.arange(len(targets)) if parts is None else parts
    targets = np.maximum(targets, _LEAST)
    low, high = 0.0, 2.0
    best = _filled(last, targets * high, parts, wishes, pull)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        runs = _filled(last, targets * middle, parts, wishes, pull)
        if int(runs.sum(axis=0)[1]) == len(last.positions):
            best, high = runs, middle
        else:
            low = middle
    begins, sizes = best.T
    costs = last.costs[0, begins] + (sizes - 1) * last.costs[1, begins]
    level = high if alone else float(costs.sum() / targets.sum())
    begins, sizes = best[_exchanged(last, best, costs, targets * level, parts, wishes, pull)].T
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    places = np.repeat(begins - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Groups(last.positions[places], offsets)


def _filled(
    last: LastSamples,
    targets: Float64Array,
    parts: Int64Array,
    wishes: Float64Array,
    pull: float,
) -> Int64Array:
    """[steps, 2] begin and size of the run of each target."""
    targets = targets.copy()
    samples = len(last.positions)
    running = np.concatenate([[0], np.cumsum(last.times)])
    runs = np.zeros((len(targets), 2), np.int64)
    free = np.arange(len(targets))
    begin = 0
    while len(free):
        single, each = last.costs[:, begin].tolist()
        room = min(int(last.room[begin]), samples - begin - len(free) + 1)
        share = -(-(samples - begin) // len(free))  # where more samples cost no more
        sizes = np.full(len(free), min(room, share), np.int64)
        if each > 0:
            further = (targets[free] * (1 + ROUNDING) - single) / each
            sizes = np.clip(further + 1, 1, room).astype(np.int64)
        missing = 1 - (single + (sizes - 1) * each) / targets[free]
        middle = 1 - (running[begin] + running[begin + sizes]) / (2 * running[-1])
        found = int(_loss(missing, middle - wishes[free], pull).argmin())
        runs[free[found]] = begin, sizes[found]
        begin += int(sizes[found])
        others = parts[free] == parts[free[found]]
        others[found] = False
        if others.any():
            missed = float(missing[found] * targets[free[found]]) / np.count_nonzero(others)
            targets[free[others]] = np.maximum(targets[free[others]] + missed, _LEAST)
        free = np.delete(free, found)
    return runs


def _loss(missing: Float64Array, away: Float64Array, pull: float) -> Float64Array:
    """
    Args:
        missing: share of the target's cost that a run lacks; negative where it costs more.
        away: how far the run is from its wish.
    """
    cost = np.where(missing >= 0, UNDER * missing, -OVER * missing)
    return np.asarray(cost + pull * np.abs(away), np.float64)


def _exchanged(
    last: LastSamples,
    runs: Int64Array,
    costs: Float64Array,
    targets: Float64Array,
    parts: Int64Array,
    wishes: Float64Array,
    pull: float,
) -> Int64Array:
    """[steps] the run that each target has once no two could change places to lose less."""
    begins, sizes = runs.T
    running = np.concatenate([[0], np.cumsum(last.times)])
    middles = 1 - (running[begins] + running[begins + sizes]) / (2 * running[-1])
    away = middles[:, None] - wishes
    budgets = np.bincount(parts, targets)[parts]
    chosen = np.arange(len(runs))
    for _ in range(_EXCHANGES):
        # [step, step] what one would lose with the run of the other.
        held = np.bincount(parts, costs[chosen])[parts, None]
        more = np.where(parts[:, None] == parts, 0.0, costs[chosen] - costs[chosen][:, None])
        now = _loss(1 - (held + more) / budgets[:, None], away[chosen].T, pull)
        own = np.diagonal(now)
        gain = own[:, None] + own - now - now.T
        best = int(gain.argmax())
        a, b = divmod(best, len(runs))
        if gain[a, b] <= 1e-9:
            break
        chosen[[a, b]] = chosen[[b, a]]
    return chosen
