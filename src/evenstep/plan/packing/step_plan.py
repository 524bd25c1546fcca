"""One step, by the planner that the options belong to: `plan_steady` here, or `plan_wlb`.

A step is a function of the documents that wait. Invariants of both planners: no micro-batch exceeds
its cap, no document is planned twice, and if any document waits, at least one is planned.

The steady planner packs from one pool of long documents, without queues. Delaying outliers in
queues equalises the micro-batches of a step, but not the steps: those with outliers have fewer
tokens, or many more, than those without, and the tokens of a step are its batch size. This planner
bounds the tokens of a step without losing balance, since it evaluates what the waiting documents
could become before it chooses: see `long_selection`. To the long documents chosen it adds the
oldest short ones, and fills by LPT. No step holds more tokens than `step_cap`, except for documents
that have waited `max_delay`.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.drain import drain
from evenstep.plan.packing.long_selection import Pool, choose_long
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.wlb import fill, plan_wlb


def plan_steady(lengths: Int64Array, ages: Int64Array, options: SteadyOptions) -> Groups:
    """Plans as `plan_step` does, for at least one document and none above the cap."""
    pool = Pool.of(lengths, ages, options)
    chosen = choose_long(pool, options)
    room = options.step_cap - int(lengths[chosen].sum())
    overdue = options.overdue(ages)
    planned = overdue.copy()
    planned[chosen] = True
    planned[pool.short[pool.short_tokens <= room]] = True
    if not planned.any():
        planned[0] = True
    short = np.zeros(len(lengths), np.bool_)
    short[pool.short] = True
    return fill(lengths, pool.costs, planned, overdue, options, ordinary=short)


def plan_step(
    options: PackingOptions, lengths: Int64Array, ages: Int64Array, final: bool = False
) -> Groups:
    """Plans one step: `plan_steady` with `SteadyOptions`, else `plan_wlb`.

    Args:
        options: first, so that ``partial(plan_step, options)`` is a planner.
        lengths: [documents] int64 tokens of all that wait, in order of arrival.
        ages: [documents] int64 steps that each has waited, descending; 0 for new arrivals.
        final: no more documents will arrive: plans the first step of `drain`.

    Returns:
        At most `options.micro_batches` micro-batches of positions in `lengths`, none empty; the
        positions in each ascend. Documents left out wait for the next step, in the same order.

    Raises:
        SampleError: a document is longer than a micro-batch.
    """
    if not len(lengths):
        return Groups.empty()
    if final:
        return drain(lengths, options)[0]
    options.check(lengths)
    if isinstance(options, SteadyOptions):
        return plan_steady(lengths, ages, options)
    return plan_wlb(lengths, ages, options)
