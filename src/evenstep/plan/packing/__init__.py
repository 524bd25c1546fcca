"""Documents to packed micro-batches of equal cost (WLB-LLM, sections 3 and 4, and beyond it).

In reading order, with the section of the paper that each file follows:

```
step_limits         what a document costs; the limits of a step                  (4.1)
outliers            which documents wait, and what all ranks aim at in a step    (4.2)
fill                one rank's micro-batches, filled to that cost                (4.3);
                    the last steps of an epoch
workload_packing    the policy `WorkloadPacking`: what ranks exchange
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.plan.packing.step_limits import DocumentCost as DocumentCost
    from evenstep.plan.packing.workload_packing import WorkloadPacking as WorkloadPacking

__getattr__, __dir__ = lazy_names(__name__)
