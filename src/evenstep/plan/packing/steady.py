"""Equal work *and* steady tokens: packing from one pool of long documents, without queues.

Delaying outliers by queue equalises the micro-batches of an iteration, but not the iterations:
those with outliers have fewer tokens, or many more, than those without, and the tokens of an
optimizer step are its batch size. This planner bounds the tokens of an iteration and loses nothing
in balance, as it looks at what the documents that wait could become before it chooses: see
`long_choice`. To the long documents chosen it adds the oldest short ones, and fills by LPT.

All is a function of the documents that wait. Invariants: no micro-batch exceeds its cap; no
iteration exceeds its own but for documents that waited `max_delay`; no document is in two
micro-batches; and if any document waits, one at least is planned.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.plan.groups import Groups
from evenstep.plan.packing.draining import drain
from evenstep.plan.packing.long_choice import Pool, choose_long
from evenstep.plan.packing.options import SteadyOptions
from evenstep.plan.packing.wlb import fill

__all__ = ["plan_steady"]

Int64Array = npt.NDArray[np.int64]


def plan_steady(
    lengths: Int64Array,
    ages: Int64Array,
    options: SteadyOptions,
    *,
    final: bool = False,
) -> Groups:
    """Plans one iteration.

    Args:
        lengths: [documents] int64 tokens of all that wait, in order of arrival.
        ages: [documents] int64 iterations that each has waited; never rising.
        final: nothing more will arrive: this is the first iteration of `drain`.

    Returns:
        At most `options.micro_batches` micro-batches of positions in `lengths`, none empty. What
        they do not name goes on waiting, in the same order, an iteration older.

    Raises:
        SampleError: a document is longer than a micro-batch.
    """
    if not len(lengths):
        return Groups.empty()
    if final:
        return drain(lengths, options)[0]
    options.check(lengths)
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
