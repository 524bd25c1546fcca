"""Padded groups for a cost of two parts: runs, whose members are exchanged until the tower's part
fits, too.

What the language model computes for a padded group follows from its longest sample and its size;
what the vision tower computes, from which samples these are. So a run is found as in `padded_runs`,
and then members are exchanged for samples that are a little shorter, until the vision costs of the
group add up to its target. That changes nothing in the first part, and comes close fast: a run of
20 samples with 24 others to choose from has 456 exchanges of one sample but the longest.

Lengths 4, 5, 6, 7, 8 with vision costs 9, 0, 5, 0, 2, and a target of three samples of up to 8
tokens and a vision cost of 11: the run is 6, 7, 8 with 7. For the 6 comes the 4, and makes 11.

Samples of some lengths have more vision cost than others. Runs whose usual share of it is that of
the target are preferred, else images would run out among the others. Where a target has no vision
cost, samples without images meet it: then no rank runs the tower.

Invariant: every target gets one group, of at least one sample, and no sample is in two. No group of
several samples exceeds a memory limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.plan.policies.even.best_runs import BestRuns, Target
from evenstep.plan.policies.even.exchanges import Goal, exchange
from evenstep.plan.policies.even.padded_runs import (
    AGE,
    EACH,
    LENGTH,
    NO_LIMIT,
    PATCHES,
    POSITION,
    ROUNDING,
    SINGLE,
    UNDER,
    RunLimits,
)
from evenstep.plan.policies.even.two_part_window import IMAGES, TwoPartWindow

_OTHERS = 24
"""Shorter samples, at least, that members may be exchanged for; else as many as there are."""
_EXCHANGES = 6
_ENOUGH = 0.001
"""Misfit, as a share of the mean vision cost of a group, below which no more is exchanged."""
_MIXED = 1.0
"""Loss of a group without images where others have some."""


def take_two_part_runs(
    window: TwoPartWindow, targets: Sequence[Target], limits: RunLimits, *, oldest: bool
) -> tuple[Int64Array, Int64Array]:
    """Takes a group out of the window for one target after the other.

    Args:
        window: at least as many samples as targets.
        targets: the costliest first.
        oldest: as `take_runs` has it.

    Returns:
        [samples] members of `window` taken, group after group, longest last; and [steps + 1] where
        each group begins.
    """
    places = np.arange(len(window))
    made: list[Int64Array] = []
    for step, target in enumerate(targets):
        must = _must(window, targets[step:], limits.due, oldest, first=step == 0)
        chosen = _group(window, target, limits, must, len(window) - (len(targets) - step - 1))
        made.append(places[chosen])
        left = np.ones(len(window), bool)
        left[chosen] = False
        places, window = places[left], window.take(np.flatnonzero(left))
    ends = np.cumsum([0, *map(len, made)], dtype=np.int64)
    return np.concatenate([places[:0], *made]), ends


def _must(
    window: TwoPartWindow, targets: Sequence[Target], due: int, oldest: bool, *, first: bool
) -> int:
    """The sample that has to go into the first of these targets, or -1."""
    ages = window.numbers[AGE]
    late = ages == ages.max() if oldest else ages >= due
    if not late.any():
        return -1
    if not oldest and len(targets) > 1:  # else all that are late
        now, *later = (_fits(window, target) for target in targets)
        late &= ~np.logical_or.reduce(later) & (now | first)
    positions = np.where(late, window.numbers[POSITION], NO_LIMIT)
    found = int(positions.argmin())
    return found if late[found] else -1


def _fits(window: TwoPartWindow, target: Target) -> BoolArray:
    """[samples] whether each alone costs no more than the target in either part."""
    limit = np.inf if target.vision is None else target.vision * (1 + ROUNDING)
    fits: BoolArray = window.costs[SINGLE] <= target.cost * (1 + ROUNDING)
    fits &= window.vision <= limit
    return fits


def _group(
    window: TwoPartWindow, target: Target, limits: RunLimits, must: int, most: int
) -> Int64Array:
    """Places of the samples of one group, ascending.

    Args:
        must: the sample that the group has to hold, or -1.
        most: samples that it may hold.
    """
    group, loss = np.array([max(must, 0)]), np.inf
    if target.vision != 0:
        group, loss = _exchanged(window, target, limits, must, most)
        if target.vision is None:
            return group
        if loss < np.inf and window.vision[group].sum() <= target.vision * (1 + ROUNDING):
            return group
    # No run comes down to the target. Others wait for this rank least with one of these.
    for other in (
        _without_images(window, target, limits, must, most),
        np.array([must if must >= 0 else int(window.vision.argmin())]),
    ):
        if not len(other):
            continue
        cost = float(window.costs[SINGLE, other[-1]])
        cost += (len(other) - 1) * float(window.costs[EACH, other[-1]])
        vision = float(window.vision[other].sum())
        lost = UNDER * (1 - cost / (target.cost or 1.0))
        missing = target.vision - vision
        lost += target.per_misfit(target.cost) * max(missing, -target.over * missing)
        if (vision == 0) != (target.vision == 0):
            lost += _MIXED
        if lost < loss:
            group, loss = other, lost
    return group


def _exchanged(
    window: TwoPartWindow, target: Target, limits: RunLimits, must: int, most: int
) -> tuple[Int64Array, float]:
    """The run that loses least after exchanges, ascending, and what it loses; infinitely much if
    none fits."""
    runs = BestRuns.of(window, target, limits, must, most)
    lengths = window.numbers[LENGTH].astype(np.float64)
    amounts = np.stack([window.vision, lengths])
    group, best = np.array([max(must, 0)]), np.inf
    limited = tuple(
        (window.numbers[row], limit)
        for row, limit in ((PATCHES, limits.max_patches), (IMAGES, limits.max_images))
        if limit is not None
    )
    for run in runs.promising():
        if runs.loss[run] >= best:
            break
        begin, end, wanted = int(runs.begins[run]), int(runs.ends[run]), float(runs.wanted[run])
        padded = float(lengths[end - 1]) * (end - begin)
        cost = float(runs.costs[run])
        members = np.arange(begin, end)
        padding = 1 - float(lengths[begin:end].sum()) / padded
        off = target.per_misfit(cost)
        members, lost = exchange(
            members,
            np.arange(max(0, begin - max(_OTHERS, end - begin)), begin),
            amounts,
            # What is missing to the longest is padding; there cannot be too much.
            Goal(
                np.array([wanted, padded]),
                np.array([off, 1 / padded]),
                np.array([off * target.over, 0.0]),
            ),
            kept=np.array([end - 1, must]),
            limited=limited,
            enough=padding + UNDER * _ENOUGH,
            most=_EXCHANGES,
        )
        lost += float(runs.loss[run]) - padding
        if lost < best:
            group, best = np.sort(members), lost
    return group, best


def _without_images(
    window: TwoPartWindow, target: Target, limits: RunLimits, must: int, most: int
) -> Int64Array:
    """A run of samples that cost the vision tower nothing, with one that does if the target has
    vision cost; ascending, or none if there are no such samples or one with images has to go."""
    none = np.flatnonzero(window.vision == 0)
    if not len(none) or (must >= 0 and window.vision[must] > 0):
        return none[:0]
    place = int(np.searchsorted(none, must)) if must >= 0 else -1
    text = window.take(none)
    runs = BestRuns.of(text, target, limits, place, most)
    run = int(runs.loss.argmin())
    if runs.loss[run] == np.inf:
        return none[max(place, 0) : max(place, 0) + 1]
    group = none[runs.begins[run] : runs.ends[run]]
    shorter = window.vision[: group[-1]]
    few = np.flatnonzero((shorter > 0) & (shorter <= (target.vision or 0.0)))
    if limits.max_patches is not None:
        few = few[window.numbers[PATCHES, few] <= limits.max_patches]
    if limits.max_images is not None:
        few = few[window.numbers[IMAGES, few] <= limits.max_images]
    if len(few) and len(group) > 1:
        out = 1 if group[0] == must else 0
        if out < len(group) - 1:
            group = np.sort(np.append(np.delete(group, out), few[-1]))
    return group
