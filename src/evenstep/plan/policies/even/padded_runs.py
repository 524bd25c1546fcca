"""Padded groups as runs of the sorted window, each the one that loses least: the heart of `Even`.

A padded group is a run of the samples sorted by length, so it costs what its longest sample costs,
times their number. For a target, every sample of the window is tried as the longest of a run that
is as large as the target and the memory limits allow. A run loses what it stays below the target,
and its padding; a bonus for age decides between runs that are about equally good. Where samples are
short against the target, many runs cost almost exactly the target.

If every group costs the same, or as much as its longest sample, the target does not limit the
number of samples. Then only memory does.

Invariant: every target gets one run, of at least one sample, and no sample is in two. No run of
several samples exceeds a memory limit or costs more than its target.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array, prefix_sums
from evenstep.plan.groups import Groups
from evenstep.plan.policies.even.sorted_window import (
    AGE,
    LENGTH,
    POSITION,
    SINGLE,
    RunLimits,
    SortedWindow,
)

ROUNDING = 1e-9
"""Share of a target that is forgiven, where it is the cost of just such a run."""
UNDER = 8.0
"""How much more cost below the target counts than padding: each step has to be even."""
UNDER_OF_SEVERAL = 0.8
"""The same where other runs can make up for it."""
WISH = 0.15
"""Loss of a run that is as far as can be from its place among the sorted samples."""
_AGE_BONUS = 0.002 / 8**4
"""Loss that is forgiven to a run, for the fourth power of the rounds that its samples waited."""
_OLDEST = 64
"""Rounds beyond which waiting longer counts no more."""
_LAST = np.iinfo(np.int64).max

Choose = Callable[[SortedWindow, int, int, int], Int64Array]
"""From the samples that are left, the step, the sample that has to go or -1, and the number of
samples that a group may hold, to the places of the group, ascending."""


def take_runs(
    samples: SortedWindow,
    targets: Float64Array,
    limits: RunLimits,
    *,
    oldest: bool,
    wishes: Float64Array | None = None,
    pull: float = WISH,
    tilt: float = 0.0,
    parts: Int64Array | None = None,
) -> Groups:
    """Takes a run for one target after the other.

    Lengths 4, 5, 8, 8, 9, a cost of samples x longest and a target of 16: the run of one sample of
    9 costs 9 and loses 7/16; that of two of 8 costs 16 and loses nothing; that which ends with the
    5 could hold three, but there are only two, which cost 10 and lose 6/16, besides the padding of
    1/10.

    Args:
        samples: at least as many as targets.
        targets: [steps] cost that each run should come close to, largest first.
        limits: the memory limits, and when a sample has to go.
        oldest: see `take_groups`.
        wishes: [steps] where in the sorted window each run should be, as a share of its tokens.
        pull: loss of a run that is as far as can be from its wish.
        tilt: loss forgiven to a run of the longest samples, and in part to shorter ones; negative
            where short ones should go first.
        parts: [steps] runs of the same part count together: what one misses is added to the targets
            of those behind it.

    Returns:
        A run for each target: places in `samples`, ascending.
    """
    choice = _Choice(targets.copy(), limits, wishes, pull, tilt, parts)
    return take_groups(samples, len(targets), limits.due, choice.fits, choice.choose, oldest=oldest)


@dataclass(frozen=True)
class _Choice:
    """Chooses the run of each step; see `take_runs`."""

    targets: Float64Array
    """[steps] of steps that are still to come they change."""
    limits: RunLimits
    wishes: Float64Array | None
    pull: float
    tilt: float
    parts: Int64Array | None

    def fits(self, left: SortedWindow, step: int) -> BoolArray:
        alone: BoolArray = left.costs[SINGLE] <= self.targets[step] * (1 + ROUNDING)
        return alone

    def choose(self, left: SortedWindow, step: int, must: int, most: int) -> Int64Array:
        if self.parts is None:
            return self._best(left, step, must, most, UNDER)
        others = step + 1 + np.flatnonzero(self.parts[step + 1 :] == self.parts[step])
        chosen = self._best(left, step, must, most, UNDER_OF_SEVERAL if len(others) else UNDER)
        missed = self.targets[step] - left.cost_of(chosen)
        self.targets[others] += missed / max(len(others), 1)
        return chosen

    def _best(
        self, left: SortedWindow, step: int, must: int, most: int, under: float
    ) -> Int64Array:
        place = -1.0 if self.wishes is None else float(self.wishes[step])
        wish = Wish(place, self.pull, self.tilt)
        runs = Runs.of(left, float(self.targets[step]), self.limits, must, most, wish, under)
        found = int(runs.loss.argmin())
        if must >= 0 and runs.loss[0] == np.inf:
            return np.array([must])  # too large for the target or the memory
        if runs.loss[found] == np.inf:
            return np.array([0])  # nothing fits: the shortest alone
        return np.arange(runs.begins[found], runs.ends[found])


def take_groups(
    samples: SortedWindow,
    steps: int,
    due: int,
    fits: Callable[[SortedWindow, int], BoolArray],
    choose: Choose,
    *,
    oldest: bool,
) -> Groups:
    """Takes a group for one step after the other, and sees to it that no sample waits for ever.

    Args:
        samples: at least as many as steps.
        due: rounds after which a sample has to go.
        fits: [samples] whether each that is left costs no more than the target of a step.
        choose: the group of a step.
        oldest: whether each group has to hold the oldest sample that is left. Otherwise one that is
            due goes into the last step whose target it fits, or alone into the first if it fits
            none.
    """
    places, left = np.arange(len(samples)), samples
    made: list[Int64Array] = []
    for step in range(steps):
        must = _must(left, step, steps, due, fits, oldest)
        chosen = choose(left, step, must, len(left) - (steps - step - 1))
        made.append(places[chosen])
        rest = np.delete(np.arange(len(left)), chosen)
        places, left = places[rest], left.take(rest)
    return Groups.of(made)


def _must(
    left: SortedWindow,
    step: int,
    steps: int,
    due: int,
    fits: Callable[[SortedWindow, int], BoolArray],
    oldest: bool,
) -> int:
    """The sample that has to go into this step, or -1."""
    ages = left.numbers[AGE]
    late = ages == ages.max() if oldest else ages >= due
    if not late.any():
        return -1
    if not oldest and step + 1 < steps:  # the last step takes whatever is due
        for later in range(step + 1, steps):
            late &= ~fits(left, later)
        if step > 0:
            late &= fits(left, step)
    positions = np.where(late, left.numbers[POSITION], _LAST)
    found = int(positions.argmin())
    return found if late[found] else -1


class Wish(NamedTuple):
    """Where a run should be; see `take_runs`."""

    place: float
    """Negative for anywhere."""
    pull: float = WISH
    tilt: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Runs:
    """The best run that ends with each sample. Arrays [runs]."""

    begins: Int64Array
    ends: Int64Array
    costs: Float64Array
    loss: Float64Array
    """Infinite where a run does not fit."""

    @classmethod
    def of(
        cls,
        window: SortedWindow,
        target: float,
        limits: RunLimits,
        must: int,
        most: int,
        wish: Wish,
        under: float = UNDER,
    ) -> Runs:
        """
        Args:
            target: cost of the run.
            must: the sample that the run has to hold, or -1.
            most: samples that it may hold.
            under: how much more what is missing counts than padding.
        """
        count = len(window)
        first, last = 0, count
        if must >= 0:  # a run with a longer sample holds no more
            first = must
            last = min(count, must + max(limits.max_tokens // int(window.numbers[LENGTH, must]), 1))
        lengths, ages = window.numbers[LENGTH, :last], window.numbers[AGE, :last]
        tokens = prefix_sums(lengths)
        aged = prefix_sums(np.minimum(ages, _OLDEST) ** 4 * lengths)
        ends = np.arange(first + 1, last + 1)
        longest, (single, each) = lengths[first:], window.costs[:, first:last]
        room = np.minimum(np.minimum(limits.max_tokens // longest, ends), most)
        for row, limit in limits.counted:
            held = prefix_sums(window.numbers[row, :last])
            room = np.minimum(room, ends - np.searchsorted(held, held[ends] - limit))
        spare = target * (1 + ROUNDING) - single
        further = np.full(len(ends), np.inf)
        np.divide(spare, each, out=further, where=each > 0)
        sizes = np.maximum(np.minimum(further + 1, room), 1).astype(np.int64)
        begins = ends - sizes
        real = (tokens[ends] - tokens[begins]).astype(np.float64)
        costs = single + (sizes - 1) * each
        missing = 1 - costs / (target or 1.0)
        flat = each == 0  # there the memory limit says how large a run should be
        missing[flat] = 1 - sizes[flat] / np.maximum(limits.max_tokens // longest[flat], 1)
        loss = under * missing + 1 - real / (sizes * longest)
        loss -= _AGE_BONUS * ((aged[ends] - aged[begins]) / real)
        middle = (tokens[ends] + tokens[begins]) / (2 * tokens[last])
        if wish.place >= 0:
            loss += wish.pull * np.abs(middle - wish.place)
        loss -= wish.tilt * middle
        unfit = (spare < 0) | (room < 1)
        if must >= 0:
            unfit |= begins > must
        loss[unfit] = np.inf
        return cls(begins=begins, ends=ends, costs=costs, loss=loss)
