"""Equal work *and* steady tokens: packing from one pool of long documents, without queues.

Delaying outliers by queue equalises the micro-batches of an iteration, but not the iterations:
those with outliers have fewer tokens, or many more, than those without, and the tokens of an
optimizer step are its batch size. This planner bounds the tokens of an iteration and loses nothing
in balance, as it looks at what the documents that wait could become before it chooses: see
`long_choice`. To the long documents chosen it adds the oldest short ones, and fills by LPT.

Invariants: those of `plan_iteration`; and no iteration holds more tokens than its own cap, but for
documents that waited `max_delay`.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.long_selection import Pool, choose_long
from evenstep.plan.packing.options import SteadyOptions
from evenstep.plan.packing.wlb import fill

__all__ = ["plan_steady"]


def plan_steady(lengths: Int64Array, ages: Int64Array, options: SteadyOptions) -> Groups:
    """What `plan_iteration` returns, of at least one document and none above the cap."""
    pool = Pool.of(lengths, ages, options)
    chosen = choose_long(pool, options)
    room = options.step_cap - int(lengths[chosen].sum())
    fits = pool.short_tokens <= room
    overdue = options.overdue(ages)
    taken, short = np.zeros(len(lengths), np.bool_), np.zeros(len(lengths), np.bool_)
    taken[chosen] = True
    short[pool.short] = True
    taken[pool.short[fits]] = True
    taken |= overdue
    if not taken.any():
        taken[0] = True
    return fill(lengths, pool.works, taken, overdue, options, ordinary=short)
