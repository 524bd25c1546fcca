"""The last steps of an epoch: everything that is left, in as few steps as the cap allows.

All micro-batches are filled at once, by LPT, so that they are as equal as can be. Those of similar
cost then form a step, where what cannot be balanced, a few long documents, matters least.
"""

from __future__ import annotations

import math

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.partition.best_fit import best_fit_decreasing
from evenstep.plan.partition.greedy import lpt_fill


def drain(
    lengths: Int64Array, options: PackingOptions, *, steps: int | None = None
) -> list[Groups]:
    """Plans all steps that are left.

    Args:
        lengths: [documents] int64 of all that is left, in order of arrival, none above the cap.
        steps: how many there must be, where ranks have agreed on a number; raised to what the cap
            needs. None is as few as the cap allows.

    Returns:
        The steps in order, each with at most `options.micro_batches` micro-batches of positions in
        `lengths`, ascending; together they hold every document once. The most costly step comes
        first, and so does the most costly micro-batch of each. There are fewer steps than `steps`
        only if there are fewer documents.
    """
    if not len(lengths):
        return []
    options.check(lengths)
    count, cap = options.micro_batches, options.cap
    costs = options.cost.of_documents(lengths)
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    fewest = math.ceil(int(lengths.sum()) / (cap * count))
    packed: Int64Array | None = None
    wanted = max(fewest, steps or 0)
    while True:
        balanced = lpt_fill(lengths, costs, order, min(wanted * count, len(lengths)), cap)
        if (balanced >= 0).all():
            return _to_steps(balanced, costs, wanted, count)
        # Balanced, some found no room; packed as tightly as possible, all may.
        if packed is None:
            packed = _best_fit(lengths, cap)
        if packed.max() < wanted * count:
            return _to_steps(packed, costs, wanted, count)
        if wanted > len(lengths):
            raise InvariantError(f"{len(lengths)} documents do not fit in {wanted} steps")
        wanted += 1


def _best_fit(lengths: Int64Array, cap: int) -> Int64Array:
    """[documents] micro-batch of each, as few as best-fit decreasing needs."""
    packed = best_fit_decreasing(lengths, cap)
    placed = np.empty(len(lengths), np.int64)
    placed[packed.members] = np.arange(len(packed)).repeat(packed.sizes)
    return placed


def _to_steps(placed: Int64Array, costs: Int64Array, wanted: int, count: int) -> list[Groups]:
    """Divides micro-batches by descending cost into at most `wanted` steps of at most `count`."""
    groups = Groups.by_label(placed)
    loads = np.add.reduceat(costs[groups.members], groups.offsets[:-1])  # [micro-batches]
    descending = np.argsort(-loads, kind="stable")
    steps = min(wanted, len(groups))
    if len(groups) >= wanted * count:
        bounds = np.arange(steps + 1) * count
    else:
        # Too few to fill all steps: each gets at least one.
        bounds = np.arange(steps + 1) * len(groups) // steps
    return [groups.take(descending[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist())]
