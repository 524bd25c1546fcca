"""The last iterations: everything that is left, in as few of them as the cap allows.

All micro-batches are filled at once, by LPT, so that they are as equal as can be; then those of
like work go in one iteration, as what cannot be levelled out, a few long documents, matters least
beside its like.
"""

from __future__ import annotations

import math

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.lpt_fill import level_fill
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.partition.best_fit import best_fit_decreasing

__all__ = ["drain"]


def drain(
    lengths: Int64Array, options: PackingOptions, *, iterations: int | None = None
) -> list[Groups]:
    """
    Args:
        lengths: [documents] int64 of all that is left, in order of arrival, none above the cap.
        iterations: how many there must be, where ranks have agreed on a number. It is raised to
            what the cap needs. None is as few as the cap allows.

    Returns:
        The iterations in order, each with at most `options.micro_batches` micro-batches of
        positions in `lengths`, ascending; together they hold every document once. The ones with
        most work come first, and in each the order of micro-batches is that of falling work. Fewer
        iterations than asked for only where there are fewer documents.
    """
    if not len(lengths):
        return []
    options.check(lengths)
    count, cap = options.micro_batches, options.cap
    works = options.workload.of_documents(lengths)
    order = np.lexsort((np.arange(len(lengths)), -lengths))
    fewest = math.ceil(int(lengths.sum()) / (cap * count))
    packed: Int64Array | None = None
    wanted = max(fewest, iterations or 0)
    while True:
        made = level_fill(lengths, works, order, min(wanted * count, len(lengths)), cap)
        if (made >= 0).all():
            return _iterations(made, works, wanted, count)
        if packed is None:
            packed = _best_fit(lengths, cap)
        if packed.max() < wanted * count:
            return _iterations(packed, works, wanted, count)
        if wanted > len(lengths):
            raise InvariantError(f"{len(lengths)} documents do not fit in {wanted} iterations")
        wanted += 1


def _best_fit(lengths: Int64Array, cap: int) -> Int64Array:
    """[documents] micro-batch of each, as few as best-fit decreasing needs."""
    packed = best_fit_decreasing(lengths, cap)
    placed = np.empty(len(lengths), np.int64)
    placed[packed.members] = np.arange(len(packed)).repeat(packed.sizes)
    return placed


def _iterations(placed: Int64Array, works: Int64Array, wanted: int, count: int) -> list[Groups]:
    groups = Groups.by_label(placed)
    load = np.add.reduceat(works[groups.members], groups.offsets[:-1])
    falling = np.argsort(-load, kind="stable")
    used = min(wanted, len(groups))
    if len(groups) >= wanted * count:
        bounds = np.arange(used + 1) * count
    else:
        # Too few to fill all iterations: each gets one at least.
        bounds = np.arange(used + 1) * len(groups) // used
    return [groups.take(falling[a:b]) for a, b in zip(bounds[:-1].tolist(), bounds[1:].tolist())]
