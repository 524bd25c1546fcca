"""Packed groups that hold, and cost, as much as is asked for: how `Even(packed=True)` fills a step.

A packed group is any set of samples within the budget, so there is room for two aims at once: to
fill the budget, and to cost what the groups of the other ranks cost. A full group of short samples
costs least; every longer sample in it adds an *excess* over what its tokens would cost if they came
in short samples. A step is therefore given by its tokens and by the excess it has room for, and
filled in three parts: an *anchor*, which must go now or has room in few other steps; a *run* of the
oldest samples; and a *pair* from the rest of the window that makes tokens and cost come out even.

Invariant: every target gets one group, of at least one sample; no group of several samples breaks
the memory limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array, prefix_sums
from evenstep.cost import Cost, GroupShapes, MemoryLimit
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policies.even.drain_packed import limited
from evenstep.plan.policy import Window

_STARTS = 4
"""Runs begin at each of the oldest samples, this many of them."""
_CUTS = 3
"""Each run is tried in full, and with one and two samples fewer, to leave room for the pair."""
_PAIRS = 12
"""Samples of the rest of the window that are tried as the first of the pair."""
_SHARES = (np.arange(_PAIRS) + 0.5) / _PAIRS
_SLACK = 1e-3
"""Share of its target by which a step may go over it for the sake of an older sample."""

# What a group loses, in shares of its target cost.
UNFILLED = 3.0
"""Tokens left empty count three times: they are a share of one more step on every rank, while
cost below the target is lost on this rank in this step alone."""
_ABOVE = 1.0
"""Cost above the target counts this much more than cost below it: all other ranks wait for it."""
_SKIPPED = 2e-4
"""For each older sample that the run passes over: decides between groups that are equally good."""


@dataclass(frozen=True, kw_only=True)
class CostSplit:
    """A cost, taken apart: a packed group costs ``fixed`` plus what each sample adds."""

    fixed: float
    added: Float64Array
    """[samples] what each adds."""
    per_token: float
    """Cost of a token in a sample of median length."""
    excess: Float64Array
    """[samples] what each adds beyond ``per_token`` times its length; negative for short ones."""

    @classmethod
    def of(cls, lengths: Int64Array, cost: Cost) -> CostSplit:
        single = np.asarray(cost(GroupShapes.of_equals(1, lengths), packed=True), np.float64)
        median = np.sort(lengths)[len(lengths) // 2 : len(lengths) // 2 + 1]
        one, two = (float(cost(GroupShapes.of_equals(n, median), packed=True)[0]) for n in (1, 2))
        fixed = min(max(2 * one - two, 0.0), one)
        added = single - fixed
        per_token = (one - fixed) / float(median[0])
        excess = added - per_token * lengths
        # Where cost is proportional to tokens, what rounding leaves is not an excess.
        excess[np.abs(excess) <= 1e-9 * single] = 0.0
        return cls(fixed=fixed, added=added, per_token=per_token, excess=excess)


def even_costs(split: CostSplit, tokens: float, groups: int) -> Float64Array:
    """Costs of groups of these samples if they are as even as they can be.

    The longest samples come to lie in different groups. Those whose excess is above the mean of
    what is left for the other groups make theirs cost more; the others share the rest evenly: the
    excesses 9, 4, 1, 1, 0 become 9, 4, 2 in three groups.

    Args:
        split: cost of the samples.
        tokens: tokens of each group.
        groups: at least 1 and at most the number of samples.

    Returns:
        [groups] largest first.
    """
    return even_sums(split.excess, groups) + split.fixed + split.per_token * tokens


def even_sums(values: Float64Array, groups: int) -> Float64Array:
    """[groups] sums of the values, shared out as evenly as `even_costs` says, largest first."""
    values = np.sort(values)[::-1]
    largest = values[:groups]
    # [groups] with the g largest in groups by themselves, what the others share.
    others = np.arange(groups, 0, -1)
    rest = values.sum() - np.concatenate([[0.0], np.cumsum(largest[:-1])])
    level = (rest / others).min()
    sums: Float64Array = np.maximum(largest, level)
    return sums


@dataclass(frozen=True, kw_only=True)
class PackedStepFiller:
    """Fills steps with groups that are full and cost their targets."""

    limit: MemoryLimit
    """Of groups of several samples. A group should hold all of `max_tokens`."""
    max_wait: int

    def fill(self, window: Window, split: CostSplit, targets: Float64Array) -> Groups:
        """Fills one step after the other, the costliest target first.

        Args:
            window: at least as many samples as targets.
            split: cost of the samples of the window.
            targets: [steps] cost that each step's group should come close to, largest first.

        Returns:
            One group for each target, in their order.
        """
        count, excess = len(window), split.excess
        samples = PackedSamples.of(window, split, self.limit)
        room = targets - split.fixed - split.per_token * self.limit.max_tokens  # [steps] for excess
        slack = _SLACK * float(targets.max())
        anchors = self._overdue(window, excess, room)
        by_length = np.argsort(window.lengths, kind="stable")
        free = np.ones(count, bool)
        free[list(anchors.values())] = False
        # No run of the oldest needs more.
        longest_run = _STARTS + 4 * math.ceil(
            self.limit.max_tokens * count / int(window.lengths.sum())
        )
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
            group = samples.complete(
                anchor,
                np.flatnonzero(small)[:longest_run],
                by_length,
                free,
                gap=float(targets[step] - split.fixed - split.added[anchor]),
                target=float(targets[step]),
                most=count - sum(map(len, made)) - (len(targets) - step - 1),
            )
            free[group] = False
            group = self.refined(group, samples, by_length, free, target=targets[step], step=step)
            free[group] = False
            made.append(group)
            by_length = by_length[free[by_length]]
        return Groups.of(made)

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
        """The group, or what else comes of it; gives back to `free` what is no longer in it.

        Args:
            group: positions of its samples, the anchor first.
            target: cost of the step, which is number `step`.
        """
        return group

    def _overdue(self, window: Window, excess: Float64Array, room: Float64Array) -> dict[int, int]:
        """Step -> position of a sample that has to go in it: the cheapest that has room for it."""
        overdue = np.flatnonzero(window.ages >= self.max_wait)[: len(room)]
        chosen: dict[int, int] = {}
        for position in overdue[np.argsort(-excess[overdue], kind="stable")].tolist():
            open_steps = [step for step in range(len(room)) if step not in chosen]
            fitting = [step for step in open_steps if room[step] >= excess[position]]
            chosen[fitting[-1] if fitting else open_steps[0]] = position
        return chosen


@dataclass(frozen=True)
class PackedSamples:
    """The samples of a window; the last column stands for no sample."""

    needs: Int64Array
    """[limits, samples + 1] tokens of each, and patches where they are limited; 0 for no sample."""
    added: Float64Array
    """[samples + 1] cost that each adds; 0 for no sample."""
    limits: Int64Array
    """[limits] what a group holds."""

    @classmethod
    def of(cls, window: Window, split: CostSplit, limit: MemoryLimit) -> PackedSamples:
        rows, limits = limited(window, limit)
        needs = np.zeros((len(rows), len(window) + 1), np.int64)
        needs[:, :-1] = rows
        return cls(needs, np.append(split.added, 0.0), np.array(limits, np.int64))

    def complete(
        self,
        anchor: int,
        old: Int64Array,
        by_length: Int64Array,
        free: BoolArray,
        *,
        gap: float,
        target: float,
        most: int,
    ) -> Int64Array:
        """The anchor, and the run and the pair that go best with it.

        A group of 100 tokens whose anchor has 40, and free samples of 30, 20, 25, 10, 5, 50, 12, 8
        and 35 tokens, oldest first. Runs that fit in 60 begin at each of the first four samples,
        and are as long as can be or up to two samples shorter. None reaches the 50, so it and the
        samples behind it make the pairs:

            run            left   longest pairs
            30 20            10   8
            30               30   12 8
            20 25 10 5        0
            20 25            15   12
            25 10 5          20   12 8
            25               35   35
            10               50   50;  35 12

        Four candidates fill the group: 20 25 10 5, 25 10 5 12 8, 25 35 and 10 50. The one whose
        cost is closest to the target is taken, and of equals the one that passes over the fewest
        older samples.

        Args:
            old: [samples] positions of free samples that the step has room for, oldest first.
            by_length: [samples] positions, shortest first; all that are free, and others.
            free: [window] whether a sample may be taken.
            gap: cost that is missing when the step has the anchor alone.
            target: cost of the step.
            most: samples that the group may hold.
        """
        alone = np.array([anchor], np.int64)
        left = self.limits - self.needs[:, anchor]  # [limits]
        if left.min() < 0:
            return alone
        old = old[(self.needs[:, old] <= left[:, None]).all(axis=0)]
        runs = _oldest_runs(self.needs[:, old], self.added[old], left, gap, most)
        # The samples that are in no run and fit, shortest first; then no sample.
        rest = free.copy()
        rest[old[: runs.ends.max()]] = False
        pool = by_length[rest[by_length]]
        for need, limit in zip(self.needs[1:], left[1:]):
            pool = pool[need[pool] <= limit]
        pool, none = np.append(pool, len(free)), len(pool)
        # All below: [runs, pairs].
        first, second = _pairs(self.needs[0][pool], runs.left[0])
        needs, added = self.needs[:, pool], self.added[pool]
        missing = (runs.left[0][:, None] - needs[0][first] - needs[0][second]) / self.limits[0]
        off = runs.gap[:, None] - added[first] - added[second]
        if target > 0:  # else nothing costs anything
            off /= target
        score = _score(missing, off, runs.starts)
        size = 1 + (runs.ends - runs.starts)[:, None] + (first < none) + (second < none)
        score[size > most] = np.inf
        for need, limit in zip(needs[1:], runs.left[1:]):
            score[need[first] + need[second] > limit[:, None]] = np.inf
        run, pair = divmod(int(score.argmin()), _PAIRS)
        if score[run, pair] == np.inf:
            return alone
        places = [place for place in (first[run, pair], second[run, pair]) if place < none]
        return np.concatenate([alone, old[runs.starts[run] : runs.ends[run]], pool[places]])


@dataclass(frozen=True)
class _Runs:
    """Run r takes the samples ``old[starts[r]:ends[r]]``."""

    starts: Int64Array
    ends: Int64Array
    left: Int64Array
    """[limits, runs] what the run leaves of each limit."""
    gap: Float64Array
    """[runs] cost that is missing when the step has the anchor and the run."""


def _oldest_runs(
    needs: Int64Array, added: Float64Array, left: Int64Array, gap: float, most: int
) -> _Runs:
    """From each of the first samples on, the longest run that fits, and shorter ones.

    Args:
        needs: [limits, samples] oldest first.
        added: [samples] cost that each adds.
        left: [limits] what the anchor leaves of each limit.
        gap: cost that is missing when the step has the anchor alone.
        most: samples that the group may hold.
    """
    held = np.array([prefix_sums(row) for row in needs])  # [limits, samples + 1]
    costs = prefix_sums(added)
    starts = np.arange(min(_STARTS, len(added)) or 1)
    ends = np.searchsorted(held[0], held[0][starts] + left[0], side="right") - 1
    for row, limit in zip(held[1:], left[1:]):
        ends = np.minimum(ends, np.searchsorted(row, row[starts] + limit, side="right") - 1)
    starts = np.repeat(starts, _CUTS)
    ends = np.maximum((ends[:, None] - np.arange(_CUTS)).reshape(-1), starts)
    ends = np.minimum(ends, starts + most - 1)
    return _Runs(
        starts=starts,
        ends=ends,
        left=left[:, None] - held[:, ends] + held[:, starts],
        gap=gap - costs[ends] + costs[starts],
    )


def _pairs(lengths: Int64Array, left: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The pairs to try with each run: as the first sample none, or one of some evenly spaced among
    those that fit; as the second the longest that then fits.

    Args:
        lengths: [pool] tokens, shortest first, and at last 0 for no sample.
        left: [runs] tokens that each run leaves.

    Returns:
        Two arrays [runs, pairs] of positions in the pool.
    """
    none = len(lengths) - 1
    fitting = np.searchsorted(lengths[:none], left, side="right")  # [runs]
    first = (fitting[:, None] * _SHARES).astype(np.int64)
    first[fitting == 0] = none
    first[:, 0] = none
    second = np.searchsorted(lengths[:none], left[:, None] - lengths[first], side="right") - 1
    second -= second == first
    second[second < 0] = none
    return first, second


def _score(missing: Float64Array, off: Float64Array, skipped: Int64Array) -> Float64Array:
    """[runs, pairs] what each candidate loses.

    Args:
        missing: [runs, pairs] share of the tokens that is left empty.
        off: [runs, pairs] share of the target by which the cost is below it, or negative above.
        skipped: [runs] older samples that the run passes over.
    """
    lost = UNFILLED * missing + np.abs(off) + _ABOVE * np.maximum(-off, 0)
    return lost + _SKIPPED * skipped[:, None]


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
