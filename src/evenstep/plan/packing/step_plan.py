"""One step, by the planner that the options belong to.

A step is a function of the documents that wait. Invariants of both planners: no micro-batch exceeds
its cap, no document is planned twice, and if any document waits, at least one is planned.
"""

from __future__ import annotations

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.drain import drain
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.steady import plan_steady
from evenstep.plan.packing.wlb import plan_wlb


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
