"""Documents to packed micro-batches of equal work (WLB-LLM, sections 3 and 4, and past it).

`WorkloadPacking` is the policy. It plans with `plan_iteration` where one rank is alone: `wlb` with
queues of outliers, `steady` without. `level_fill` is what both place documents with, and `drain`
what they end with. Packing by fixed length (`window_packing`, `fixed_length`) and by the solver
(`exact_packing`) are there to compare with.
"""

from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.options import PackingOptions, SteadyOptions
from evenstep.plan.packing.outliers import auto_thresholds
from evenstep.plan.packing.pieces import OVER_LONG, Pieces, cut_long
from evenstep.plan.packing.step_plan import plan_iteration
from evenstep.plan.packing.window_packing import cut_at_windows
from evenstep.plan.packing.workload_packing import WorkloadPacking

__all__ = [
    "OVER_LONG",
    "DocumentCost",
    "PackingOptions",
    "Pieces",
    "SteadyOptions",
    "WorkloadPacking",
    "auto_thresholds",
    "cut_at_windows",
    "cut_long",
    "plan_iteration",
]
