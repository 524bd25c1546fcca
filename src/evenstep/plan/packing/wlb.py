"""Workload-balanced packing with outlier delay: WLB-LLM, Algorithm 1, one iteration at a time.

An iteration gets every document that waits, but outliers; and of these the oldest ones of one
class, one for each micro-batch, once enough wait: see `outliers`. They are placed from the longest
to the shortest, each in the micro-batch with least work that has room, so micro-batches differ in
tokens and agree in work. What finds no room waits for the next iteration.

Where the paper is silent or contradicts itself: a document may fill a micro-batch exactly; one
class goes in an iteration, the one whose head is oldest; a document that finds no room in the
micro-batch with least work goes to the next that has some, not to the emptiest; what waits
because it had no room is taken over once.

Beyond the paper: where no queue is long enough, outliers of neighbouring classes go together if
they are about as alike as those of one class; and a micro-batch that short documents could
not level gets a second outlier. Both make the wait shorter and iterations more even.

The invariants are those of `plan_iteration`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.long_pairs import second_documents
from evenstep.plan.packing.lpt_fill import level_fill
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.packing.outliers import alike, class_to_fire, classes, likest, queue_heads

__all__ = ["fill", "plan_wlb"]

Flags = npt.NDArray[np.bool_]


def plan_wlb(lengths: Int64Array, ages: Int64Array, options: PackingOptions) -> Groups:
    """What `plan_iteration` returns, of at least one document and none above the cap."""
    works = options.workload.of_documents(lengths)
    kinds = classes(lengths, options.thresholds)
    overdue = options.overdue(ages)
    chosen = overdue | (kinds == 0)
    fired = _fired(works, kinds, ages, overdue, options)
    chosen[fired] = True
    chosen[_seconds(lengths, works, kinds, chosen, fired, options)] = True
    if not chosen.any():
        # Outliers alone, and not enough of any class.
        chosen[likest(works, 0, options.micro_batches)] = True
    return fill(lengths, works, chosen, overdue, options, ordinary=kinds == 0)


def _fired(
    works: Int64Array,
    kinds: Int64Array,
    ages: Int64Array,
    overdue: Flags,
    options: PackingOptions,
) -> Int64Array:
    """Positions of the outliers that go in this iteration."""
    count = options.micro_batches
    outliers = np.flatnonzero(kinds > 0)
    late = np.flatnonzero(overdue & (kinds > 0))
    if len(late):
        # The oldest takes its like with it, whatever their class.
        anchor = int(np.searchsorted(outliers, late[0]))
        return outliers[likest(works[outliers], anchor, count)]
    queues = len(options.thresholds)
    fire = class_to_fire(*queue_heads(kinds, ages, queues), count) if queues else 0
    if fire:
        return np.flatnonzero(kinds == fire)[:count]
    if len(outliers) < count:
        return outliers[:0]
    run = outliers[likest(works[outliers], 0, count)]
    most = alike(int(kinds[outliers[0]]), options) * float(works[run].min())
    return run if works[run].max() <= most else run[:0]


def _seconds(
    lengths: Int64Array,
    works: Int64Array,
    kinds: Int64Array,
    chosen: Flags,
    fired: Int64Array,
    options: PackingOptions,
) -> Int64Array:
    """Positions of waiting outliers that level what the fired ones leave uneven."""
    waiting = np.flatnonzero((kinds > 0) & ~chosen)
    if len(fired) < options.micro_batches or not len(waiting):
        return waiting[:0]
    short_tokens = int(lengths[kinds == 0].sum())
    second = second_documents(
        lengths,
        works,
        fired,
        waiting[np.argsort(lengths[waiting], kind="stable")],
        cap=options.cap,
        left=options.micro_batches * options.cap - int(lengths[fired].sum()),
        short_tokens=short_tokens,
        density=int(works[kinds == 0].sum()) / max(short_tokens, 1),
    )
    return np.array(list(second.values()), np.int64)


def fill(
    lengths: Int64Array,
    works: Int64Array,
    chosen: Flags,
    overdue: Flags,
    options: PackingOptions,
    *,
    ordinary: Flags,
) -> Groups:
    """Micro-batches of the chosen documents: the overdue ones first, in order of arrival, then from
    the longest to the shortest. Where these are more than all micro-batches hold, the newest of the
    ordinary ones are left out, rather than the shortest every time."""
    spare = chosen & ~overdue & ordinary
    room = options.micro_batches * options.cap - int(lengths[chosen & ~spare].sum())
    candidates = np.flatnonzero(spare)
    chosen = chosen.copy()
    chosen[candidates[lengths[candidates].cumsum() > room]] = False
    late, rest = np.flatnonzero(chosen & overdue), np.flatnonzero(chosen & ~overdue)
    order = np.concatenate([late, rest[np.argsort(-lengths[rest], kind="stable")]])
    return Groups.by_label(level_fill(lengths, works, order, options.micro_batches, options.cap))
