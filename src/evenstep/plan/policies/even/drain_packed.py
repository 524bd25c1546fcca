"""All of a window in packed groups: what `Even(packed=True)` does when there is no choice left.

At the end of an epoch nothing can stay behind, so every rank packs all that it has, in as many
groups as the rank that needs most. Each rank's groups are as nearly of one length as can be.

Invariant: every sample of the window is in one group, and no group of several samples breaks the
memory limit.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import MemoryLimit
from evenstep.plan.groups import Groups, align
from evenstep.plan.policy import Window

_EXCESSES = 0.001 * 2.0 ** np.arange(10)
"""By how much a group may be longer than the mean, where a fuller packing has to be looked for."""


def next_fit(times: Int64Array, window: Window, limit: MemoryLimit) -> Groups:
    """Cuts a window, in order of arrival, wherever the next sample would not fit."""
    needs, limits = _needs(times, window, limit)
    sums = np.concatenate([np.zeros((len(needs), 1)), np.cumsum(needs, axis=1)], axis=1)
    ends = [0]
    while ends[-1] < len(window):
        begin = ends[-1]
        fitting = [
            int(np.searchsorted(row, row[begin] + most, side="right")) - 1
            for row, most in zip(sums, limits.tolist())
        ]
        ends.append(max(min(fitting), begin + 1))
    return Groups(np.arange(len(window), dtype=np.int64), np.array(ends, np.int64))


def first_fit(times: Int64Array, window: Window, limit: MemoryLimit) -> Groups:
    """Puts each sample, the longest first, into the first group with room for it."""
    needs, limits = _needs(times, window, limit)
    return _first_fit(needs, limits, np.argsort(-times, kind="stable"))


def share_out(
    times: Int64Array,
    window: Window,
    groups: Groups,
    steps: int,
    limit: MemoryLimit,
    *,
    vision: Float64Array,
) -> Groups:
    """All of a window, if possible, in as many groups as steps.

    Args:
        times: [samples] what each counts: see `timed`.
        groups: `first_fit` of this window.
        steps: at least 1 and at most the number of samples.
        vision: [samples] cost of each for the vision tower, to be shared out besides.

    Returns:
        As many groups as steps, the longest first. All of the window, unless it needs more groups
        than that.
    """
    if len(groups) > steps:
        made = align(groups, steps)
    else:
        needs, limits = _needs(times, window, limit)
        shared = _level(needs, limits, vision, steps)
        if shared is None and vision.any():
            shared = _level(needs, limits, np.zeros(len(vision)), steps)
        if shared is None:
            shared = _capped(needs, limits, np.argsort(-times, kind="stable"), steps) or groups
        made = align(shared, steps)
    taken = np.add.reduceat(times[made.members], made.offsets[:-1])
    return made.take(np.argsort(-taken, kind="stable"))


def limited(window: Window, limit: MemoryLimit) -> tuple[list[Int64Array], list[int]]:
    """What a group has no more of than a limit: [samples] of each sample, and the limit."""
    rows, limits = [window.lengths], [limit.max_tokens]
    for row, most in ((window.patches, limit.max_patches), (window.images, limit.max_images)):
        if row is not None and most is not None:
            rows.append(row)
            limits.append(most)
    return rows, limits


def _needs(
    times: Int64Array, window: Window, limit: MemoryLimit
) -> tuple[Float64Array, Float64Array]:
    """[limits, samples] how much each sample takes of each limit, and [limits] the limits.

    A single sample above a limit fits a group by itself, where it takes all of each limit.
    """
    rows, limits = limited(window, limit)
    rows[0] = times  # at least its tokens
    bounds = np.array(limits, np.float64)
    needs = np.array(rows, np.float64)
    needs[:, (needs > bounds[:, None]).any(axis=0)] = bounds[:, None]
    return needs, bounds


def _level(
    needs: Float64Array, limits: Float64Array, vision: Float64Array, steps: int
) -> Groups | None:
    """Places each sample in a group that has room: where the vision tower's cost is least, largest
    first; those without any then where time is least. None if one has no room."""
    left = np.repeat(limits[:, None], steps, axis=1)
    both = np.stack([needs[0], vision])
    costs = np.zeros((2, steps))
    order = np.lexsort(-both)
    group = np.empty(len(order), np.int64)
    for position in order.tolist():
        need = needs[:, position]
        room = (left >= need[:, None]).all(axis=0)
        open_costs = np.where(room, costs[int(vision[position] > 0)], np.inf)
        chosen = int(open_costs.argmin())
        if open_costs[chosen] == np.inf:
            return None
        group[position] = chosen
        costs[:, chosen] += both[:, position]
        left[:, chosen] -= need
    return Groups.by_label(group, order)


def _capped(
    needs: Float64Array, limits: Float64Array, order: Int64Array, steps: int
) -> Groups | None:
    """First fit with a lower limit of tokens, the lowest tried under which the steps are enough."""
    lowest = max(float(needs[0].sum()) / steps, float(needs[0].max()))
    for excess in _EXCESSES:
        capped = limits.copy()
        capped[0] = min(lowest * (1 + excess), limits[0])
        groups = _first_fit(needs, capped, order)
        if len(groups) <= steps:
            return groups
    return None


def _first_fit(needs: Float64Array, limits: Float64Array, order: Int64Array) -> Groups:
    # left: [limits, groups]
    left = np.repeat(limits[:, None], len(order), axis=1)
    group = np.empty(len(order), np.int64)
    count = 0
    for position in order.tolist():
        need = needs[:, position]
        # The first group that is still empty has room, so there always is one.
        fits = (left[:, : count + 1] >= need[:, None]).all(axis=0)
        chosen = int(np.argmax(fits))
        count = max(count, chosen + 1)
        group[position] = chosen
        left[:, chosen] -= need
    return Groups.by_label(group, order)
