"""Variable-length packing with outlier delay: WLB-LLM, Algorithm 1, one step at a time.

A step gets every waiting document that is not an outlier, and the oldest outliers of one class, one
for each micro-batch, once enough wait: see `outliers`. They are placed from the longest to the
shortest, each in the micro-batch of least cost that has room, so micro-batches differ in tokens and
agree in cost. Documents without room wait for the next step.

Where the paper is silent or contradicts itself: a document may fill a micro-batch exactly; one
class is released in a step, the one whose head is oldest; a document that finds no room in the
micro-batch of least cost goes to the next one with room, not to the emptiest; documents left over
for want of room are carried over once, not twice.

Beyond the paper: if no queue is long enough, outliers of neighbouring classes are planned together,
provided that they differ about as little as those of one class; and a micro-batch that short
documents could not balance gets a second outlier. Both shorten the wait and even out the steps.

The invariants are those of `plan_step`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.long_pairs import pair_long_documents
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.packing.outliers import (
    class_to_release,
    length_classes,
    max_cost_ratio,
    most_similar,
    queue_heads,
)
from evenstep.plan.partition.greedy import lpt_fill

Flags = npt.NDArray[np.bool_]


def plan_wlb(lengths: Int64Array, ages: Int64Array, options: PackingOptions) -> Groups:
    """Plans as `plan_step` does, for at least one document and none above the cap."""
    costs = options.cost.of_documents(lengths)
    classes = length_classes(lengths, options.thresholds)
    overdue = options.overdue(ages)
    chosen = overdue | (classes == 0)
    released = _released(costs, classes, ages, overdue, options)
    chosen[released] = True
    chosen[_seconds(lengths, costs, classes, chosen, released, options)] = True
    if not chosen.any():
        # Nothing but outliers waits, and not enough of any class.
        chosen[most_similar(costs, 0, options.micro_batches)] = True
    return fill(lengths, costs, chosen, overdue, options, ordinary=classes == 0)


def _released(
    costs: Int64Array,
    classes: Int64Array,
    ages: Int64Array,
    overdue: Flags,
    options: PackingOptions,
) -> Int64Array:
    """Positions of the outliers planned in this step, by the first rule that applies.

    With three micro-batches and thresholds (20, 35), and nothing overdue, outliers of these
    lengths, in order of arrival, are released:

    - 36, 21, 40, 38: the class from 35 on has its three, so 36, 40, 38.
    - 34, 33, 35: neither class has three, but together they differ little, so all.
    - 34, 21, 50: they differ too much, so none.

    An overdue outlier is released in any case, with those most similar to it.
    """
    count = options.micro_batches
    outliers = np.flatnonzero(classes > 0)
    late = np.flatnonzero(overdue & (classes > 0))
    if len(late):
        anchor = int(np.searchsorted(outliers, late[0]))
        return outliers[most_similar(costs[outliers], anchor, count)]
    queues = len(options.thresholds)
    ready = class_to_release(*queue_heads(classes, ages, queues), count) if queues else 0
    if ready:
        return np.flatnonzero(classes == ready)[:count]
    if len(outliers) < count:
        return outliers[:0]
    run = outliers[most_similar(costs[outliers], 0, count)]
    limit = max_cost_ratio(int(classes[outliers[0]]), options) * float(costs[run].min())
    return run if costs[run].max() <= limit else run[:0]


def _seconds(
    lengths: Int64Array,
    costs: Int64Array,
    classes: Int64Array,
    chosen: Flags,
    released: Int64Array,
    options: PackingOptions,
) -> Int64Array:
    """Positions of waiting outliers that balance what the released ones leave uneven."""
    waiting = np.flatnonzero((classes > 0) & ~chosen)
    if len(released) < options.micro_batches or not len(waiting):
        return waiting[:0]
    short_tokens = int(lengths[classes == 0].sum())
    second = pair_long_documents(
        lengths,
        costs,
        released,
        waiting[np.argsort(lengths[waiting], kind="stable")],
        cap=options.cap,
        left=options.micro_batches * options.cap - int(lengths[released].sum()),
        short_tokens=short_tokens,
        density=int(costs[classes == 0].sum()) / max(short_tokens, 1),
    )
    return np.array(list(second.values()), np.int64)


def fill(
    lengths: Int64Array,
    costs: Int64Array,
    chosen: Flags,
    overdue: Flags,
    options: PackingOptions,
    *,
    ordinary: Flags,
) -> Groups:
    """Packs the chosen documents: the overdue ones first, in order of arrival, then the others from
    the longest to the shortest. If they are more than all micro-batches hold, the newest of the
    ordinary ones are left out, rather than the shortest every time."""
    optional = chosen & ~overdue & ordinary
    room = options.micro_batches * options.cap - int(lengths[chosen & ~optional].sum())
    candidates = np.flatnonzero(optional)
    chosen = chosen.copy()
    chosen[candidates[lengths[candidates].cumsum() > room]] = False
    late, rest = np.flatnonzero(chosen & overdue), np.flatnonzero(chosen & ~overdue)
    order = np.concatenate([late, rest[np.argsort(-lengths[rest], kind="stable")]])
    return Groups.by_label(lpt_fill(lengths, costs, order, options.micro_batches, options.cap))
