"""Padded groups for a cost of two parts: runs whose members are exchanged until both parts fit.

The language part of a padded group follows from its longest sample and its size; the vision part
depends on which samples it holds. So a run is found as in `padded_runs`. Then members are exchanged
for samples that are a little shorter, until the vision costs add up to the target. This changes
nothing in the first part, and comes close fast: a run of 20 samples with 24 others to choose from
has 456 exchanges of one sample other than the longest.

Lengths 4, 5, 6, 7, 8 with vision costs 9, 0, 5, 0, 2, and a target of three samples of up to 8
tokens and a vision cost of 11: the run is 6, 7, 8 with 7. Exchanging the 6 for the 4 makes 11.

Samples of some lengths have more vision cost than others. Runs whose usual share of it is that of
the target are preferred, else images would run out among the others. Where a target has no vision
cost, samples without images meet it: then no rank runs the tower.

Invariant: every target gets one group, of at least one sample, and no sample is in two. No group of
several samples exceeds a memory limit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array, prefix_sums
from evenstep.plan.groups import Groups
from evenstep.plan.policies.even.exchanges import Goal, exchange
from evenstep.plan.policies.even.padded_runs import ROUNDING, UNDER, Runs, Wish, take_groups
from evenstep.plan.policies.even.sorted_window import (
    LENGTH,
    SINGLE,
    RunLimits,
    SortedWindow,
)

_BLOCKS = 12
"""Parts of the sorted window, of each of which the best run is tried."""
_UNUSUAL = 0.3
"""Loss of a run whose usual vision cost is nothing against the target, or the other way round."""
_NEAR = 16
"""Samples, at least, by each run that tell what vision cost is usual there."""
_OTHERS = 24
"""Shorter samples, at least, that members may be exchanged for; else as many as there are."""
_EXCHANGES = 6
_ENOUGH = 0.001
"""Misfit, as a share of the mean vision cost of a group, below which no more is exchanged."""
_MIXED = 1.0
"""Loss of a group without images where others have some."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a group should cost."""

    cost: float
    """Of the language model; no group of several samples costs more."""
    vision: float | None
    """Of the vision tower; None is what is usual for samples of like length."""
    mean: float
    """Mean vision cost for each unit of language cost: what misfits are measured by."""
    over: float = 1.0
    """How much more vision cost above the target counts than below it: the number of ranks, since
    all others wait."""
    wish: float = -1.0
    """See `take_runs`; negative for none."""

    def per_misfit(self, cost: float) -> float:
        """What a group loses for each unit of vision cost that it lacks.

        Args:
            cost: of the group, of the language model.
        """
        return UNDER / (max(self.vision or 0.0, self.mean * cost) or 1.0)


def take_two_part_runs(
    samples: SortedWindow, targets: Sequence[Target], limits: RunLimits, *, oldest: bool
) -> Groups:
    """Takes a group for one target after the other; as `take_runs`, for targets of two parts.

    Args:
        targets: the costliest first.
    """

    def fits(left: SortedWindow, step: int) -> BoolArray:
        target = targets[step]
        limit = np.inf if target.vision is None else target.vision * (1 + ROUNDING)
        alone: BoolArray = left.costs[SINGLE] <= target.cost * (1 + ROUNDING)
        return alone & (left.vision <= limit)

    def choose(left: SortedWindow, step: int, must: int, most: int) -> Int64Array:
        return _group(left, targets[step], limits, must, most)

    return take_groups(samples, len(targets), limits.due, fits, choose, oldest=oldest)


def _group(
    window: SortedWindow, target: Target, limits: RunLimits, must: int, most: int
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
    # No run comes down to the target. The ranks wait least with one of these.
    for other in (
        _without_images(window, target, limits, must, most),
        np.array([must if must >= 0 else int(window.vision.argmin())]),
    ):
        if not len(other):
            continue
        vision = float(window.vision[other].sum())
        lost = UNDER * (1 - window.cost_of(other) / (target.cost or 1.0))
        missing = target.vision - vision
        lost += target.per_misfit(target.cost) * max(missing, -target.over * missing)
        if (vision == 0) != (target.vision == 0):
            lost += _MIXED
        if lost < loss:
            group, loss = other, lost
    return group


def _exchanged(
    window: SortedWindow, target: Target, limits: RunLimits, must: int, most: int
) -> tuple[Int64Array, float]:
    """The run that loses least after exchanges, ascending, and what it loses; infinitely much if
    none fits."""
    runs = Runs.of(window, target.cost, limits, must, most, Wish(target.wish))
    loss, wanted = _of_vision(window, runs, target)
    lengths = window.numbers[LENGTH].astype(np.float64)
    amounts = np.stack([window.vision, lengths])
    group, best = np.array([max(must, 0)]), np.inf
    limited = tuple((window.numbers[row], limit) for row, limit in limits.counted)
    for run in _promising(loss):
        if loss[run] >= best:
            break
        begin, end = int(runs.begins[run]), int(runs.ends[run])
        padded = float(lengths[end - 1]) * (end - begin)
        padding = 1 - float(lengths[begin:end].sum()) / padded
        off = target.per_misfit(float(runs.costs[run]))
        members, lost = exchange(
            np.arange(begin, end),
            np.arange(max(0, begin - max(_OTHERS, end - begin)), begin),
            amounts,
            # Tokens missing to the longest are padding; there cannot be too many.
            Goal(
                np.array([float(wanted[run]), padded]),
                np.array([off, 1 / padded]),
                np.array([off * target.over, 0.0]),
            ),
            kept=np.array([end - 1, must]),
            limited=limited,
            enough=padding + UNDER * _ENOUGH,
            most=_EXCHANGES,
        )
        lost += float(loss[run]) - padding
        if lost < best:
            group, best = np.sort(members), lost
    return group, best


def _of_vision(
    window: SortedWindow, runs: Runs, target: Target
) -> tuple[Float64Array, Float64Array]:
    """[runs] the loss of each, with what its usual vision cost is off the target; and the vision
    cost that each should have."""
    last = int(runs.ends[-1])
    vision = prefix_sums(window.vision[:last])
    sizes = runs.ends - runs.begins
    near = np.maximum(sizes, _NEAR)
    low, high = np.maximum(runs.ends - 2 * near, 0), np.minimum(runs.ends + near, last)
    usual = (vision[high] - vision[low]) / (high - low) * sizes
    if target.vision is None:
        return runs.loss, usual
    wanted = np.full(len(usual), target.vision)
    larger = np.maximum(np.maximum(usual, wanted), np.finfo(np.float64).tiny)
    return runs.loss + _UNUSUAL * np.abs(wanted - usual) / larger, wanted


def _promising(loss: Float64Array) -> list[int]:
    """The best run of each part of the window, the best first."""
    edges = np.unique(np.linspace(0, len(loss), _BLOCKS + 1).astype(np.int64)).tolist()
    best = [a + int(loss[a:b].argmin()) for a, b in itertools.pairwise(edges)]
    return sorted((run for run in best if loss[run] < np.inf), key=loss.item)


def _without_images(
    window: SortedWindow, target: Target, limits: RunLimits, must: int, most: int
) -> Int64Array:
    """A run of samples that cost the vision tower nothing, with one that does if the target has
    vision cost; ascending. Empty if there are no such samples or one with images has to go."""
    none = np.flatnonzero(window.vision == 0)
    if not len(none) or (must >= 0 and window.vision[must] > 0):
        return none[:0]
    place = int(np.searchsorted(none, must)) if must >= 0 else -1
    text = window.take(none)
    runs = Runs.of(text, target.cost, limits, place, most, Wish(target.wish))
    loss, _ = _of_vision(text, runs, target)
    run = int(loss.argmin())
    if loss[run] == np.inf:
        return none[max(place, 0) : max(place, 0) + 1]
    group = none[runs.begins[run] : runs.ends[run]]
    shorter = window.vision[: group[-1]]
    few = np.flatnonzero((shorter > 0) & (shorter <= (target.vision or 0.0)))
    for row, limit in limits.counted:
        few = few[window.numbers[row, few] <= limit]
    if len(few) and len(group) > 1:
        out = 1 if group[0] == must else 0
        if out < len(group) - 1:
            group = np.sort(np.append(np.delete(group, out), few[-1]))
    return group
