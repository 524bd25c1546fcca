"""Packed groups that hold, and cost, as much as is asked for: how `Even(packed=True)` fills a step.

A packed group is any set of samples within the budget, so there is room for two aims at once: to
fill the budget, and to cost what the groups of the other ranks cost. A full group of short samples
costs least; every longer sample in it adds an *excess* over what its tokens would cost if they came
in short samples. A step is therefore given by its tokens and by the excess it has room for, and
filled in three parts: a sample that must go, or that few other steps have room for; a run of the
oldest samples; and a pair from the rest of the window that makes tokens and cost come out even.

Invariant: every target gets one group, of at least one sample; no group of several samples breaks
the memory limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policy import Window

__all__ = ["CostSplit", "PackedStepFiller", "even_costs"]


_STARTS = 4
"""Samples that a run of the oldest may begin after."""
_CUTS = 3
"""Samples that a run may end before it would be full, to leave room for the pair."""
_PAIRS = 12
"""Samples of the rest of the window that are tried as the first of the pair."""
_SHARES = (np.arange(_PAIRS) + 0.5) / _PAIRS
_SLACK = 1e-3
"""Share of its target by which a step may go over it for the sake of an older sample."""


@dataclass(frozen=True, kw_only=True)
class CostSplit:
    """A cost, taken apart: a packed group costs ``fixed`` plus what each sample adds."""

    fixed: float
    added: Float64Array
    """[samples] what each adds."""
    per_token: float
    """What a token costs in a sample of median length."""
    excess: Float64Array
    """[samples] what each adds beyond ``per_token`` times its length; negative for short ones."""

    @classmethod
    def of(cls, lengths: Int64Array, cost: Cost) -> CostSplit:
        single = _cost_of_equals(cost, 1, lengths)
        middle = np.sort(lengths)[len(lengths) // 2 : len(lengths) // 2 + 1]
        one, two = (float(_cost_of_equals(cost, n, middle)[0]) for n in (1, 2))
        fixed = min(max(2 * one - two, 0.0), one)
        added = single - fixed
        per_token = (one - fixed) / float(middle[0])
        excess = added - per_token * lengths
        # Where cost is proportional to tokens, what rounding leaves is not an excess.
        excess[np.abs(excess) <= 1e-9 * single] = 0.0
        return cls(fixed=fixed, added=added, per_token=per_token, excess=excess)


def _cost_of_equals(cost: Cost, samples: int, lengths: Int64Array) -> Float64Array:
    """Of packed groups of equally long samples."""
    count = np.full(len(lengths), samples, np.int64)
    shapes = GroupShapes(count, count * lengths, lengths, count * lengths * lengths)
    return np.asarray(cost(shapes, packed=True), np.float64)


def even_costs(weights: CostSplit, tokens: float, groups: int) -> Float64Array:
    """What groups of these samples cost if their costs are as even as they can be.

    The longest samples come to lie in different groups. Those whose excess is above the mean of
    what is left for the other groups make theirs cost more; the others share the rest evenly.

    Args:
        tokens: of each group.
        groups: at least 1 and at most the number of samples.

    Returns:
        [groups] largest first.
    """
    excess = np.sort(weights.excess)[::-1]
    largest = excess[:groups]
    others = np.arange(groups, 0, -1)
    rest = excess.sum() - np.concatenate([[0.0], np.cumsum(largest[:-1])])
    level = (rest / others).min()
    costs: Float64Array = np.maximum(largest, level)
    return costs + weights.fixed + weights.per_token * tokens


@dataclass(frozen=True, kw_only=True)
class PackedStepFiller:
    """What a group is held to."""

    tokens: int
    """What a group should hold, and no group of several samples exceeds."""
    max_patches: int | None
    max_wait: int

    def fill(self, window: Window, weights: CostSplit, targets: Float64Array) -> Groups:
        """
        Args:
            window: at least as many samples as targets.
            weights: of the samples of the window.
            targets: [steps] cost that each step's group should come close to, largest first.

        Returns:
            One group for each target, in their order.
        """
        count = len(window)
        columns = _Columns.of(window, weights)
        excess = weights.excess
        room = targets - weights.fixed - weights.per_token * self.tokens
        slack = _SLACK * float(targets.max())
        anchors = self._overdue(window, excess, room)
        by_length = np.argsort(window.lengths, kind="stable")
        free = np.ones(count, bool)
        free[list(anchors.values())] = False
        # No run of the oldest needs more.
        longest_run = _STARTS + 4 * math.ceil(self.tokens * count / int(window.lengths.sum()))
        made: list[Int64Array] = []
        for step in range(len(targets)):
            anchor = anchors.get(step, -1)
            if anchor < 0:
                old = np.flatnonzero(free)
                anchor = _anchor(old, excess[old], float(room[step]), slack)
                free[anchor] = False
            # Whatever the anchor takes, the shorter half of the samples may go with it.
            spare = max(float(room[step] - excess[anchor]), 0.0) + slack
            small = free & (excess <= spare)
            group = self._complete(
                columns,
                anchor,
                np.flatnonzero(small)[:longest_run],
                by_length,
                free,
                gap=float(targets[step] - weights.fixed - weights.added[anchor]),
                target=float(targets[step]),
                most=count - sum(map(len, made)) - (len(targets) - step - 1),
            )
            free[group] = False
            made.append(group)
            by_length = by_length[free[by_length]]
        return Groups.of(made)

    def _overdue(self, window: Window, excess: Float64Array, room: Float64Array) -> dict[int, int]:
        """Step -> position of a sample that has to go in it: the cheapest that has room for it."""
        overdue = np.flatnonzero(window.ages >= self.max_wait)[: len(room)]
        chosen: dict[int, int] = {}
        for position in overdue[np.argsort(-excess[overdue], kind="stable")].tolist():
            open_steps = [step for step in range(len(room)) if step not in chosen]
            fitting = [step for step in open_steps if room[step] >= excess[position]]
            chosen[fitting[-1] if fitting else open_steps[0]] = position
        return chosen

    def _complete(
        self,
        columns: _Columns,
        anchor: int,
        old: Int64Array,
        by_length: Int64Array,
        free: npt.NDArray[np.bool_],
        *,
        gap: float,
        target: float,
        most: int,
    ) -> Int64Array:
        """The anchor, and what is best added to it.

        Args:
            old: [samples] positions of free samples that the step has room for, oldest first.
            by_length: [samples] positions, shortest first; all that are free, and others.
            free: [window] whether a sample may be taken.
            gap: cost that is missing when the step has the anchor alone.
            most: samples that the group may hold.
        """
        lengths, added = columns.lengths, columns.added
        left = self.tokens - int(lengths[anchor])
        # Runs of the oldest samples.
        old = old[lengths[old] <= left]
        patches, patches_left = columns.patches, 0
        if patches is not None and self.max_patches is not None:
            patches_left = self.max_patches - int(patches[anchor])
            if patches_left < 0:
                return np.array([anchor], np.int64)
            old = old[patches[old] <= patches_left]
            by_length = by_length[patches[by_length] <= patches_left]
        tokens, costs = _running(lengths[old]), _running(added[old])
        starts = np.arange(min(_STARTS, len(old)) or 1)
        ends = np.searchsorted(tokens, tokens[starts] + left, side="right") - 1
        if patches is not None and self.max_patches is not None:
            held = _running(patches[old])
            full = np.searchsorted(held, held[starts] + patches_left, side="right") - 1
            ends = np.minimum(ends, full)
        starts = np.repeat(starts, _CUTS)
        ends = np.maximum((ends[:, None] - np.arange(_CUTS)).reshape(-1), starts)
        ends = np.minimum(ends, starts + most - 1)
        run_left = (left - tokens[ends] + tokens[starts])[:, None]
        run_gap = (gap - costs[ends] + costs[starts])[:, None]
        # Pairs from the rest; the last place stands for no sample.
        rest = free.copy()
        rest[old[: ends.max()]] = False
        pool = np.append(by_length[rest[by_length]], len(free))
        none = len(pool) - 1
        by_place = lengths[pool]
        fitting = np.searchsorted(by_place[:none], run_left, side="right")
        first = (fitting * _SHARES).astype(np.int64)
        first[(fitting == 0)[:, 0]] = none
        first[:, 0] = none
        first_left = run_left - by_place[first]
        second = np.searchsorted(by_place[:none], first_left, side="right") - 1
        second -= second == first
        second[second < 0] = none
        missing = (first_left - by_place[second]) / self.tokens
        off = run_gap - added[pool[first]] - added[pool[second]]
        if target > 0:  # else nothing costs anything
            off /= target
        score = 3 * missing + np.abs(off) + np.maximum(-off, 0) + 2e-4 * starts[:, None]
        size = (ends - starts + 1)[:, None] + (first < none) + (second < none)
        score[size > most] = np.inf
        if patches is not None and self.max_patches is not None:
            taken = (held[ends] - held[starts])[:, None]
            score[taken + patches[pool[first]] + patches[pool[second]] > patches_left] = np.inf
        row, column = divmod(int(score.argmin()), _PAIRS)
        alone = np.array([anchor], np.int64)
        if score[row, column] == np.inf:
            return alone
        pair = pool[[place for place in (first[row, column], second[row, column]) if place < none]]
        return np.concatenate([alone, old[starts[row] : ends[row]], pair])


@dataclass(frozen=True)
class _Columns:
    """[samples + 1] of each sample of a window; 0 for the last, which stands for no sample."""

    lengths: Int64Array
    added: Float64Array
    patches: Int64Array | None

    @classmethod
    def of(cls, window: Window, weights: CostSplit) -> _Columns:
        patches = None if window.patches is None else np.append(window.patches, 0)
        return cls(np.append(window.lengths, 0), np.append(weights.added, 0.0), patches)


def _running(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[values + 1] sums of the first values, from none to all of them."""
    sums = np.zeros(len(values) + 1, values.dtype)
    values.cumsum(out=sums[1:])
    return sums


def _anchor(old: Int64Array, excess: Float64Array, room: float, slack: float) -> int:
    """The sample that takes most of the room, if that is over half of it; else the oldest that
    fits. If none fits, the one with least excess."""
    fits = excess <= room + slack
    largest = int(np.where(fits, excess, -np.inf).argmax())
    if excess[largest] > room + slack:
        return int(old[excess.argmin()])
    if excess[largest] > max(room / 2, slack):
        return int(old[largest])
    return int(old[fits.argmax()])
