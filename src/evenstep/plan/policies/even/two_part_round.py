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
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.spread import like_costs
from evenstep.plan.policies.even.best_runs import Target
from evenstep.plan.policies.even.padded_end import LastSamples, profile
from evenstep.plan.policies.even.padded_round import (
    MESSAGE,
    MOST_RUNS,
    QUANTILES,
    Column,
    PaddedRound,
    pack_runs,
    unpack_runs,
)
from evenstep.plan.policies.even.padded_runs import LENGTH, POSITION, RunLimits
from evenstep.plan.policies.even.two_part_runs import take_two_part_runs
from evenstep.plan.policies.even.two_part_window import TwoPartWindow
from evenstep.plan.policy import Plan, Proposal, Window
from evenstep.plan.rng import RandomStream, generator

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
TWO_PART_MESSAGE = _SHARES + _PARTS


@dataclass(frozen=True, kw_only=True)
class TwoPartRound(PaddedRound):
    """Plans a round of `Even`, whose options it has."""

    max_images: int | None

    def propose(self, window: Window) -> Proposal:
        both = TwoPartWindow.of(window, self.cost)
        samples = both.samples
        steps = self._steps(window)
        urgency = self._urgency(samples, window)
        tokens = both.in_tokens(urgency)
        mean = float(both.vision.sum()) / float(both.numbers[LENGTH].sum())
        wanted = Target(cost=float(self.target_tokens), vision=None, mean=mean)
        limits = self._limits(self.target_tokens, due=0)
        taken, ends = take_two_part_runs(
            tokens, [wanted] * min(steps, MOST_RUNS), limits, oldest=True
        )
        groups = Groups(samples.numbers[POSITION, taken], ends)
        single, each = samples.costs[:, taken[ends[1:] - 1]]
        message = np.zeros(TWO_PART_MESSAGE, np.int64)
        count = len(groups)
        message[: Column.RUNS] = [steps, len(window), int(window.exhausted), 0, 0, count]
        highest = np.maximum.reduceat(urgency[taken], ends[:-1])
        runs = pack_runs(single + (groups.sizes - 1) * each, highest)
        message[Column.RUNS : Column.RUNS + count] = runs
        vision = np.add.reduceat(both.vision[taken], ends[:-1])
        message[_VISION : _VISION + count] = vision.view(np.int64)
        message[_SHARES:] = _shares(both)
        if window.exhausted:
            last = self._last(both, self.max_tokens)
            message[Column.GROUPS] = last.needed()
            costs = last.costs_of_few(QUANTILES).astype(np.float32)
            message[Column.LAST_COSTS : MESSAGE] = costs.view(np.int64)
        return Proposal(message, groups, window)

    def settle(self, window: Window, messages: Int64Array, rank: int) -> Plan:
        both = TwoPartWindow.of(window, self.cost)
        active = np.flatnonzero(messages[:, Column.STEPS] > 0)
        rows = messages[active]
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_ORDER)
        if len(messages) == 1 and window.accumulate > 1:
            wanted = self._last(both, self.target_tokens).needed()
            return self._alone(window, self._last(both, self.max_tokens), wanted, draw)
        if rows[:, Column.EXHAUSTED].all() and rows[:, Column.GROUPS].max() <= _LAST:
            groups = self._end(both, rows)
            return Plan(groups.take(draw.permutation(len(groups))))
        costs, vision = _targets(rows, (active + window.round) % len(messages))
        mean = float(rows[:, _SHARES:].mean()) / _UNIT
        order = draw.permutation(len(costs))
        wishes = np.full(len(costs), -1.0)
        if self.spread:
            place = int(np.searchsorted(active, rank))
            wishes = self._wishes(window, order, place, len(active))
        targets = [
            Target(
                cost=cost,
                vision=max(part, _FLOOR * mean * cost) if part > 0 else 0.0,
                mean=mean,
                over=float(len(active)),
                wish=wish,
            )
            for cost, part, wish in zip(costs.tolist(), vision.tolist(), wishes.tolist())
        ]
        limits = self._limits(self.max_tokens, due=self.max_wait)
        taken, ends = take_two_part_runs(both, targets, limits, oldest=False)
        return Plan(Groups(both.numbers[POSITION, taken], ends).take(order))

    def _limits(self, max_tokens: int, due: int) -> RunLimits:
        return RunLimits(
            max_tokens=max_tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
            due=due,
        )

    def _last(self, both: TwoPartWindow, max_tokens: int) -> LastSamples:
        return LastSamples.of(
            both.samples,
            max_tokens,
            self.max_patches,
            images=both.images,
            max_images=self.max_images,
        )

    def _end(self, both: TwoPartWindow, rows: Int64Array) -> Groups:
        """All that is left, in the order in which groups of all ranks meet."""
        steps = min(int(rows[:, Column.GROUPS].max()), int(rows[:, Column.SAMPLES].min()))
        groups = self._last(both, self.max_tokens).cut(steps)
        vision = np.empty(len(both))
        vision[both.numbers[POSITION]] = both.vision
        held = np.add.reduceat(vision[groups.members], groups.offsets[:-1])
        bits = np.ascontiguousarray(rows[:, Column.LAST_COSTS : MESSAGE])
        costs = profile(bits.view(np.float32).astype(np.float64), len(groups))
        classes = like_costs(costs, _LIKE_AT_END)
        order = [alike[np.argsort(-held[alike], kind="stable")] for alike in classes]
        return groups.take(np.concatenate(order))


def _shares(both: TwoPartWindow) -> Int64Array:
    """[16] vision cost per language cost of each part of the sorted window, ascending."""
    language = np.cumsum(both.samples.costs[0])
    ends = np.searchsorted(language, language[-1] * np.arange(1, _PARTS) / _PARTS)
    ends = np.append(ends, len(language) - 1)
    costs = np.diff(language[ends], prepend=0.0)
    vision = np.diff(np.cumsum(both.vision)[ends], prepend=0.0)
    return np.sort(_as_integers(vision, costs))


def _as_integers(vision: Float64Array, costs: Float64Array) -> Int64Array:
    """Vision cost per language cost, in units of 2 ** -20."""
    shares = np.zeros(len(vision))
    np.divide(vision, costs, out=shares, where=costs > 0)
    return np.minimum(shares * _UNIT, _MOST).astype(np.int64)


def _targets(rows: Int64Array, turns: Int64Array) -> tuple[Float64Array, Float64Array]:
    """[steps] language and vision cost of the most urgent run of each stratum, the one that costs
    the language model most first.

    Args:
        rows: [ranks, k] messages of the ranks that have samples.
        turns: [ranks] their order where runs are equally urgent.
    """
    steps = int(min(rows[:, Column.STEPS].min(), rows[:, Column.SAMPLES].min()))
    costs, urgency = unpack_runs(rows[:, Column.RUNS : Column.LAST_COSTS])
    vision = np.ascontiguousarray(rows[:, _VISION:_SHARES]).view(np.float64)
    number = np.broadcast_to(np.arange(MOST_RUNS), costs.shape)
    turn = np.broadcast_to(turns[:, None], costs.shape)
    given = number < rows[:, Column.PROPOSED, None]
    order = np.lexsort((turn[given], number[given], -urgency[given]))
    costs, vision = costs[given][order], vision[given][order]
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
