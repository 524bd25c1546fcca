"""Dynamic context parallelism: in every micro-batch, each document on as many ranks as it needs.

Sharding over a fixed number of ranks gives a document of 1,000 tokens as many ranks as one of
100,000. Here every micro-batch divides the ranks again: short documents stay whole on one rank,
long ones are shared by 2, 3, 5, 8 or more, and all ranks have equal work. In reading order:

```
options        `DynamicContext`: ranks, limits and cost; `Exchange`: what exchange costs
parcels        documents as what is placed: long ones alone, tiny ones bundled
context_plan   `ContextPlan`: groups of ranks in each micro-batch, and their documents
planner        `plan_dynamic_context`: lengths to a plan
  micro_batches  which micro-batch a parcel goes to: like lengths together
  group_sizes    ranks for each document that is too much for one
  filling        the others to where work is lacking
  merging        ranks with too much work and ranks with too little share theirs
  positions      groups to ranks, within nodes where possible
bounds         what no plan can be below
```
"""

from evenstep.plan.dynamic_context.bounds import least_alone, least_step
from evenstep.plan.dynamic_context.context_plan import ContextPlan
from evenstep.plan.dynamic_context.options import DynamicContext, Exchange
from evenstep.plan.dynamic_context.planner import plan_dynamic_context

__all__ = [
    "ContextPlan",
    "DynamicContext",
    "Exchange",
    "least_alone",
    "least_step",
    "plan_dynamic_context",
]
