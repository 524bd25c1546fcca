"""A round of padded groups for a cost of two parts, as `padded_round` is for one.

A target is a language cost and a vision cost. Ranks propose the runs of their most urgent samples,
with the vision cost that is usual for their length. If the most urgent of all ranks were the
targets, those with few long samples would be, with more vision cost than most or with none; and on
every rank something else would be left over and over. So the steps of a round cover what there is:
each rank says how much vision cost its samples have per language cost, from the shortest to the
longest, and the targets are the most urgent proposals of each of as many strata as there are steps.
Integers decide which, so that all ranks choose the same.

At the end of an epoch all that is left is cut as for one part. Groups of like language cost then
meet in order of their vision cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.groups import Groups, like_costs
from evenstep.plan.policies.even.padded_end import profile
from evenstep.plan.policies.even.padded_round import (
    MESSAGE,
    MOST_RUNS,
    QUANTILES,
    Column,
    Met,
    PaddedRound,
    bits,
    by_urgency,
    last_costs,
    unpack_runs,
)
from evenstep.plan.policies.even.sorted_window import LENGTH, POSITION, SortedWindow
from evenstep.plan.policies.even.two_part_runs import Target, take_two_part_runs

_PARTS = 16
"""Parts of the sorted window, of equal language cost, whose vision cost ranks tell each other."""
_UNIT = 1 << 20
"""Of vision cost per language cost, where it is an integer."""
_MOST = 1 << 40
_FLOOR = 0.03
"""Share of the mean vision cost that a target has at least, if it has any: less is hard to meet
with any image, and makes no difference."""
_LIKE_AT_END = 0.1
"""Share by which language costs of the last steps may differ, where groups meet by vision cost."""
_LAST = 36
"""Groups of a rank that are emitted in one round, when nothing is to come any more."""
_VISION = MESSAGE
"""Columns of a message after those of one part: [16] vision cost of each run; then [16] shares."""
_SHARES = _VISION + MOST_RUNS


@dataclass(frozen=True, kw_only=True)
class TwoPartRound(PaddedRound):
    """Plans a round of `Even`, whose options it has."""

    def _urgent_runs(self, samples: SortedWindow, count: int) -> Groups:
        mean = float(samples.vision.sum()) / float(samples.numbers[LENGTH].sum())
        wanted = Target(cost=float(self.target_tokens), vision=None, mean=mean)
        limits = self._limits(self.target_tokens, due=0)
        return take_two_part_runs(samples, [wanted] * count, limits, oldest=True)

    def _write_end(self, message: Int64Array, samples: SortedWindow, ranks: int) -> None:
        costs = self._last(samples, self.max_tokens).costs_of_few(QUANTILES).astype(np.float32)
        message[Column.LAST_COSTS :] = costs.view(np.int64)

    def _more_columns(self, samples: SortedWindow, runs: Groups) -> Int64Array:
        vision = np.zeros(MOST_RUNS)
        vision[: len(runs)] = np.add.reduceat(samples.vision[runs.members], runs.offsets[:-1])
        return np.concatenate([vision.view(np.int64), _shares(samples)])

    def _groups(self, met: Met) -> Groups:
        samples, rows = met.samples, met.rows
        costs, vision = _targets(met)
        mean = float(rows[:, _SHARES:].mean()) / _UNIT
        order = met.draw.permutation(len(costs))
        wishes = np.full(len(costs), -1.0)
        if self.spread:
            wishes = self._wishes(met, order)
        targets = [
            Target(
                cost=cost,
                vision=max(part, _FLOOR * mean * cost) if part > 0 else 0.0,
                mean=mean,
                over=float(len(rows)),
                wish=wish,
            )
            for cost, part, wish in zip(costs.tolist(), vision.tolist(), wishes.tolist())
        ]
        limits = self._limits(self.max_tokens, due=self.max_wait)
        runs = take_two_part_runs(samples, targets, limits, oldest=False)
        return Groups(samples.numbers[POSITION, runs.members], runs.offsets).take(order)

    def _end(self, met: Met) -> Groups | None:
        samples, rows = met.samples, met.rows
        if rows[:, Column.GROUPS].max() > _LAST:
            return None
        steps = min(int(rows[:, Column.GROUPS].max()), int(rows[:, Column.SAMPLES].min()))
        groups = self._last(samples, self.max_tokens).cut(steps)
        vision = np.empty(len(samples))
        vision[samples.numbers[POSITION]] = samples.vision
        held = np.add.reduceat(vision[groups.members], groups.offsets[:-1])
        costs = profile(last_costs(rows), len(groups))
        classes = like_costs(costs, _LIKE_AT_END)
        order = [alike[np.argsort(-held[alike], kind="stable")] for alike in classes]
        matched = groups.take(np.concatenate(order))
        return matched.take(met.draw.permutation(len(matched)))


def _shares(samples: SortedWindow) -> Int64Array:
    """[16] vision cost per language cost of each part of the sorted window, ascending."""
    language = np.cumsum(samples.costs[0])
    ends = np.searchsorted(language, language[-1] * np.arange(1, _PARTS) / _PARTS)
    ends = np.append(ends, len(language) - 1)
    costs = np.diff(language[ends], prepend=0.0)
    vision = np.diff(np.cumsum(samples.vision)[ends], prepend=0.0)
    return np.sort(_as_integers(vision, costs))


def _as_integers(vision: Float64Array, costs: Float64Array) -> Int64Array:
    """Vision cost per language cost, in units of 2 ** -20."""
    shares = np.zeros(len(vision))
    np.divide(vision, costs, out=shares, where=costs > 0)
    return np.minimum(shares * _UNIT, _MOST).astype(np.int64)


def _targets(met: Met) -> tuple[Float64Array, Float64Array]:
    """[steps] language and vision cost of the most urgent run of each stratum, the one that costs
    the language model most first."""
    rows, steps = met.rows, met.steps
    row, number = by_urgency(met)
    costs = unpack_runs(rows[:, Column.RUNS : Column.LAST_COSTS])[0][row, number]
    vision = bits(rows[:, _VISION:_SHARES])[row, number]
    # [16] sum over ranks of the shares, in which strata are equally wide on average.
    level = rows[:, _SHARES:].sum(axis=0)
    edges = level[np.arange(1, steps) * _PARTS // steps]
    middles = level[(2 * np.arange(steps) + 1) * _PARTS // (2 * steps)]
    shares = _as_integers(vision, costs) * len(rows)
    stratum = np.searchsorted(edges, shares, side="right")
    free = np.ones(len(shares), bool)
    chosen = []
    for step in range(steps):
        if not free.any():
            free[:] = True
        inside = free & (stratum == step)
        far = np.where(free, np.abs(shares - middles[step]), np.iinfo(np.int64).max)
        chosen.append(int(inside.argmax() if inside.any() else far.argmin()))
        free[chosen[-1]] = False
    costs, vision = costs[chosen], vision[chosen]
    order = np.lexsort((-vision, -costs))
    return costs[order], vision[order]
