"""Documents to packed micro-batches of equal cost (WLB-LLM, sections 3 and 4, and beyond it).

In reading order, with the section of the paper that each file follows:

```
document_cost       what a document costs; a micro-batch costs the sum           (4.1)
options             the limits of a step, and what a planner may choose
workload_packing    the policy `WorkloadPacking`: what ranks exchange and agree on
step_plan           one step, by the planner that the options are for: `wlb`, or the
                    steady one, with equal tokens and without queues             (not in the paper)
  wlb               Algorithm 1, with queues of outliers                         (4.2, 4.3)
    outliers        those queues: classes, which is released, thresholds         (4.2)
  long_selection    which long documents go together in a steady step
  water_fill        the level to which short documents would fill every micro-batch
  long_pairs        a second long document where short ones are not enough       (not in the paper)
shared_step         what groups of ranks share, where these change with every micro-batch
drain               the last steps of an epoch
pieces              documents cut into pieces
```

To compare with, and not used in training:

```
window_packing      full windows: cut from documents laid end to end             (3.1)
                    or filled greedily, as equal as can be                       (3.2)
exact_packing       the best packing, by a solver                                (equations 1 and 2)
tight_fill          micro-batches filled to the last token, where the solver begins
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.plan.packing.document_cost import DocumentCost as DocumentCost
    from evenstep.plan.packing.options import PackingOptions as PackingOptions
    from evenstep.plan.packing.options import SteadyOptions as SteadyOptions
    from evenstep.plan.packing.outliers import auto_thresholds as auto_thresholds
    from evenstep.plan.packing.pieces import OVER_LONG as OVER_LONG
    from evenstep.plan.packing.pieces import Pieces as Pieces
    from evenstep.plan.packing.pieces import cut_long as cut_long
    from evenstep.plan.packing.step_plan import plan_step as plan_step
    from evenstep.plan.packing.window_packing import cut_at_windows as cut_at_windows
    from evenstep.plan.packing.workload_packing import WorkloadPacking as WorkloadPacking

_HOMES = {
    ".document_cost": ("DocumentCost",),
    ".options": (
        "PackingOptions",
        "SteadyOptions",
    ),
    ".outliers": ("auto_thresholds",),
    ".pieces": (
        "OVER_LONG",
        "Pieces",
        "cut_long",
    ),
    ".step_plan": ("plan_step",),
    ".window_packing": ("cut_at_windows",),
    ".workload_packing": ("WorkloadPacking",),
}
__all__ = sorted(name for names in _HOMES.values() for name in names)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
