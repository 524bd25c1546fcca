"""One iteration, by the planner that the options are for.

All is a function of the documents that wait. Invariants, of both planners: no micro-batch exceeds
its cap, no document is in two, and if any document waits, one at least is planned.
"""

from __future__ import annotations

from evenstep.arrays import Int64Array
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.drain import drain
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.steady import plan_steady
from evenstep.plan.packing.wlb import plan_wlb

__all__ = ["plan_iteration"]


def plan_iteration(
    options: PackingOptions, lengths: Int64Array, ages: Int64Array, final: bool = False
) -> Groups:
    """Plans one iteration: `plan_steady` with `SteadyOptions`, else `plan_wlb`.

    Args:
        options: first, so that ``partial(plan_iteration, options)`` is a planner.
        lengths: [documents] int64 tokens of all that wait, in order of arrival, those of this
            iteration's arrivals last.
        ages: [documents] int64 iterations that each has waited, never rising; 0 for arrivals.
        final: nothing more will arrive: this is the first iteration of `drain`.

    Returns:
        At most `options.micro_batches` micro-batches of positions in `lengths`, none empty; in each
        the positions ascend. What they do not name goes on waiting, in the same order, an iteration
        older.

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
