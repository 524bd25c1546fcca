"""All of a window in packed groups: what `Even(packed=True)` does when there is no choice left.

At the end of an epoch nothing can stay behind, so every rank packs all that it has, in as many
groups as the rank that needs most. Each rank's groups cost as nearly the same as can be.

Invariant: every sample of the window is in one group, and no group of several samples breaks the
memory limit.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import MemoryLimit
from evenstep.plan.groups.alignment import align
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policy import Window

_EXCESSES = 0.001 * 2.0 ** np.arange(10)
"""By how much a group may cost more than the mean, where a fuller packing has to be looked for."""


def next_fit(window: Window, limit: MemoryLimit) -> Groups:
    """Cuts a window, in order of arrival, wherever the next sample would not fit."""
    needs, limits = _needs(window, limit)
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


def first_fit(window: Window, limit: MemoryLimit) -> Groups:
    """Puts each sample, the longest first, into the first group with room for it."""
    needs, limits = _needs(window, limit)
    return _first_fit(needs, limits, np.argsort(-window.lengths, kind="stable"))


def share_out(
    window: Window,
    added: Float64Array,
    groups: Groups,
    steps: int,
    limit: MemoryLimit,
    *,
    vision: Float64Array | None = None,
) -> Groups:
    """All of a window, if possible, in as many groups as steps.

    Args:
        vision: [samples] cost of each for the vision tower, to be shared out besides.
        added: [samples] what each sample adds to the cost of a group.
        groups: `first_fit` of this window.
        steps: at least 1 and at most the number of samples.

    Returns:
        As many groups as steps, the one that costs most first. All of the window, unless it needs
        more groups than that.
    """
    if len(groups) > steps:
        made = align(groups, steps)[0]
    else:
        needs, limits = _needs(window, limit)
        order = np.argsort(-added, kind="stable")
        shared = None
        if vision is not None and vision.any():
            # First by the vision tower's cost, largest first; the language model's is then brought
            # level with samples without images.
            both = np.stack([added, vision])
            part = (vision > 0).astype(np.int64)
            shared = _level_parts(needs, limits, np.lexsort(-both), both, part, steps)
        if shared is None:
            shared = _level(needs, limits, order, added, steps)
        if shared is None:
            shared = _capped(needs, limits, order, added, steps) or groups
        made = align(shared, steps)[0]
    costs = np.add.reduceat(added[made.members], made.offsets[:-1])
    return made.take(np.argsort(-costs, kind="stable"))


def limited(window: Window, limit: MemoryLimit) -> tuple[list[Int64Array], list[int]]:
    """What a group has no more of than a limit: [samples] of each sample, and the limit."""
    rows, limits = [window.lengths], [limit.max_tokens]
    for row, most in ((window.patches, limit.max_patches), (window.images, limit.max_images)):
        if row is not None and most is not None:
            rows.append(row)
            limits.append(most)
    return rows, limits


def _needs(window: Window, limit: MemoryLimit) -> tuple[Float64Array, Float64Array]:
    """[limits, samples] how much each sample takes of each limit, and [limits] the limits.

    A single sample above a limit fits a group by itself, where it takes all of each limit.
    """
    rows, limits = limited(window, limit)
    bounds = np.array(limits, np.float64)
    needs = np.array(rows, np.float64)
    needs[:, (needs > bounds[:, None]).any(axis=0)] = bounds[:, None]
    return needs, bounds


def _level(
    needs: Float64Array, limits: Float64Array, order: Int64Array, added: Float64Array, steps: int
) -> Groups | None:
    """Places each sample in the group that costs least and has room; None if one has no room."""
    return _level_parts(needs, limits, order, added[None], np.zeros(len(order), np.int64), steps)


def _level_parts(
    needs: Float64Array,
    limits: Float64Array,
    order: Int64Array,
    added: Float64Array,
    part: Int64Array,
    steps: int,
) -> Groups | None:
    """Places each sample in the group that costs least, in one part of the cost, and has room; None
    if one has no room.

    Args:
        added: [parts, samples] what each sample adds.
        part: [samples] by which part each is placed.
    """
    left = np.repeat(limits[:, None], steps, axis=1)
    costs = np.zeros((len(added), steps))
    group = np.empty(len(order), np.int64)
    for position in order.tolist():
        need = needs[:, position]
        room = (left >= need[:, None]).all(axis=0)
        open_costs = np.where(room, costs[part[position]], np.inf)
        chosen = int(open_costs.argmin())
        if open_costs[chosen] == np.inf:
            return None
        group[position] = chosen
        costs[:, chosen] += added[:, position]
        left[:, chosen] -= need
    return Groups.by_label(group, order)


def _capped(
    needs: Float64Array, limits: Float64Array, order: Int64Array, added: Float64Array, steps: int
) -> Groups | None:
    """First fit with a cost limit too, the lowest tried under which the steps are enough."""
    rows = np.concatenate([needs, added[None]])
    lowest = max(float(added.sum()) / steps, float(added.max()))
    for excess in _EXCESSES:
        groups = _first_fit(rows, np.append(limits, lowest * (1 + excess)), order)
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
