"""Equal cost *and* steady tokens: packing from one pool of long documents, without queues.

Delaying outliers in queues equalises the micro-batches of a step, but not the steps: those with
outliers have fewer tokens, or many more, than those without, and the tokens of a step are its batch
size. This planner bounds the tokens of a step without losing balance, since it evaluates what the
waiting documents could become before it chooses: see `long_selection`. To the long documents chosen
it adds the oldest short ones, and fills by LPT.

Invariants: those of `plan_step`; and no step holds more tokens than `step_cap`, except for
documents that have waited `max_delay`.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.long_selection import Pool, choose_long
from evenstep.plan.packing.options import SteadyOptions
from evenstep.plan.packing.wlb import fill


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
