"""Packed groups that are full: how `Even(packed=True)` fills a step.

Any samples may lie in a packed group, and as samples count in time (see `timed`), every full group
takes as long. A group is filled in three parts: an *anchor*, see `packed_anchors`; a *run* of the
oldest samples; and a *pair* from the rest of the window that fills it.

Where the groups of an update count together, each makes up for what those before it missed.

Invariant: there are as many groups as steps, each of at least one sample; no group of several
samples breaks the memory limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Int64Array, prefix_sums
from evenstep.cost import MemoryLimit
from evenstep.plan.policies.even.drain_packed import limited
from evenstep.plan.policies.even.fill_two_parts import VisionParts
from evenstep.plan.policies.even.packed_anchors import Anchors, PackedParts
from evenstep.plan.policy import Window

_STARTS = 4
"""Runs begin at each of the oldest samples, this many of them."""
_CUTS = 3
"""Each run is tried in full, and with one and two samples fewer, to leave room for the pair."""
_PAIRS = 12
"""Samples of the rest of the window that are tried as the first of the pair."""
_SHARES = (np.arange(_PAIRS) + 0.5) / _PAIRS
_SKIPPED = 5e-5
"""Share of a group that may stay empty for each older sample that its run passes over."""


def fill(
    times: Int64Array,
    window: Window,
    parts: PackedParts,
    limit: MemoryLimit,
    *,
    max_wait: int,
    vision: VisionParts | None,
) -> list[Int64Array]:
    """Fills one group after the other.

    Args:
        times: [samples] what each counts: see `timed`.
        window: at least as many samples as groups.
        parts: what groups should count.
        limit: of the memory of groups of several samples.
        max_wait: rounds after which a sample has to go.
        vision: what groups should cost the vision tower, of a cost of two parts.

    Returns:
        [groups] positions in the window, part after part.
    """
    count, groups = len(window), int(parts.sizes.sum())
    samples = PackedSamples.of(times, window, limit)
    by_length = np.argsort(times, kind="stable")
    anchors = Anchors.of(times, window, parts, by_length, max_wait=max_wait)
    free = anchors.free
    # No run of the oldest needs more.
    longest_run = _STARTS + 4 * math.ceil(int(parts.targets.max()) * count / int(times.sum()))
    made: list[Int64Array] = []
    for size, target in zip(parts.sizes.tolist(), parts.targets.tolist()):
        chosen = anchors.take(size, target, parts.least)
        left = target
        for number, anchor in enumerate(chosen):
            goal = max(int(times[anchor]), left // (size - number))
            old = np.flatnonzero(free)
            reserved = anchors.reserved + size - number - 1
            most = 1 + len(old) - max(groups - len(made) - 1 - reserved, 0)
            group = samples.complete(anchor, goal, old[:longest_run], by_length, free, most=most)
            free[group] = False
            if vision is not None:
                free[group[1:]] = True
                others = by_length[free[by_length]]
                others = others[~np.isin(others, group)]
                limits = np.append(goal, samples.limits)
                group = vision.exchanged(group, others, samples.needs[:, :-1], limits, len(made))
                free[group] = False
            left -= int(times[group].sum())
            made.append(group)
            by_length = by_length[free[by_length]]
    return made


@dataclass(frozen=True)
class PackedSamples:
    """The samples of a window; the last column stands for no sample."""

    needs: Int64Array
    """[1 + limits, samples + 1] what each counts, its tokens, and its patches where they are
    limited; 0 for no sample."""
    limits: Int64Array
    """[limits] what a group holds, but for what it counts."""

    @classmethod
    def of(cls, times: Int64Array, window: Window, limit: MemoryLimit) -> PackedSamples:
        rows, limits = limited(window, limit)
        needs = np.zeros((1 + len(rows), len(window) + 1), np.int64)
        needs[:, :-1] = [times, *rows]
        return cls(needs, np.array(limits, np.int64))

    def complete(
        self,
        anchor: int,
        target: int,
        old: Int64Array,
        by_length: Int64Array,
        free: BoolArray,
        *,
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

        Four candidates fill the group: 20 25 10 5, 25 10 5 12 8, 25 35 and 10 50. The one that
        passes over the fewest older samples is taken.

        Args:
            target: what the group should count.
            old: [samples] positions of free samples, oldest first.
            by_length: [samples] positions, shortest first; all that are free, and others.
            free: [window] whether a sample may be taken.
            most: samples that the group may hold.
        """
        alone = np.array([anchor], np.int64)
        left = np.append(target, self.limits) - self.needs[:, anchor]  # [1 + limits]
        if left.min() < 0:
            return alone
        old = old[(self.needs[:, old] <= left[:, None]).all(axis=0)]
        runs = _oldest_runs(self.needs[:, old], left, most)
        # The samples that are in no run and fit, shortest first; then no sample.
        rest = free.copy()
        rest[old[: runs.ends.max()]] = False
        pool = by_length[rest[by_length]]
        for need, limit in zip(self.needs[1:], left[1:]):
            pool = pool[need[pool] <= limit]
        pool, none = np.append(pool, len(free)), len(pool)
        needs = self.needs[:, pool]
        first, second = _pairs_within(needs, runs.left)  # [runs, pairs], as all below
        score = (runs.left[0][:, None] - needs[0][first] - needs[0][second]) / target
        score += _SKIPPED * runs.starts[:, None]
        size = 1 + (runs.ends - runs.starts)[:, None] + (first < none) + (second < none)
        score[size > most] = np.inf
        run, pair = divmod(int(score.argmin()), _PAIRS)
        if score[run, pair] == np.inf:
            return alone
        places = [place for place in (first[run, pair], second[run, pair]) if place < none]
        return np.concatenate([alone, old[runs.starts[run] : runs.ends[run]], pool[places]])


def _pairs_within(needs: Int64Array, left: Int64Array) -> tuple[Int64Array, Int64Array]:
    """[runs, pairs] the places of two samples that go with each run; the last is that of none.

    Args:
        needs: [1 + limits, samples + 1] as of `PackedSamples`, shortest first.
        left: [1 + limits, runs] what each run leaves.
    """
    none = needs.shape[1] - 1
    first, second = _pairs(needs[0], left[0])
    for need, limit in zip(needs[1:], left[1:]):
        first = np.where(need[first] > limit[:, None], none, first)
        over = need[first] + need[second] > limit[:, None]
        second = np.where(over, none, second)
    return first, second


@dataclass(frozen=True)
class _Runs:
    """Run r takes the samples ``old[starts[r]:ends[r]]``."""

    starts: Int64Array
    ends: Int64Array
    left: Int64Array
    """[limits, runs] what the run leaves of each limit."""


def _oldest_runs(needs: Int64Array, left: Int64Array, most: int) -> _Runs:
    """From each of the first samples on, the longest run that fits, and shorter ones.

    Args:
        needs: [limits, samples] oldest first.
        left: [limits] what the anchor leaves of each limit.
        most: samples that the group may hold.
    """
    held = np.array([prefix_sums(row) for row in needs])  # [limits, samples + 1]
    starts = np.arange(min(_STARTS, needs.shape[1]) or 1)
    ends = np.searchsorted(held[0], held[0][starts] + left[0], side="right") - 1
    for row, limit in zip(held[1:], left[1:]):
        ends = np.minimum(ends, np.searchsorted(row, row[starts] + limit, side="right") - 1)
    starts = np.repeat(starts, _CUTS)
    ends = np.maximum((ends[:, None] - np.arange(_CUTS)).reshape(-1), starts)
    ends = np.minimum(ends, starts + most - 1)
    return _Runs(starts, ends, left[:, None] - held[:, ends] + held[:, starts])


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
