"""Pure decisions: which samples form a group, and which groups form a step. NumPy only.

Nothing in here imports torch or ray, reads a clock or does I/O; equal arguments give equal plans.

```
policy, contract                    what a policy is, and what its plans are held to
even/                               the default policy
token_budget, pool_sort,            the others that see a window
  fixed_batch, sequence_packing
offline, ordering, max_tokens       those that see all lengths; planned runs them online
packing/                            documents to micro-batches of equal work
partition/, pipeline/, sharding/    weighted items to bins; the order on a pipeline; a sequence
                                    to context-parallel ranks
groups, grouping, alignment,        what several of these are made of
  best_fit, lengths
by_name                             policies by the names that commands give them
stream, remaining                   which samples of an epoch are left
```

Imports go one way, between files and between rooms.
"""

from evenstep.plan.groups.groups import Groups
from evenstep.plan.lengths import Lengths
from evenstep.plan.offline.fixed_size import LengthGrouped, Sorted
from evenstep.plan.offline.max_tokens import BucketedMaxTokens, MaxTokens
from evenstep.plan.packing import DocumentCost, WorkloadPacking, auto_thresholds
from evenstep.plan.pipeline import PipelineSchedule
from evenstep.plan.policies.even import Even
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.policies.sequence_packing import SequencePacking
from evenstep.plan.policies.token_budget import TokenBudget
from evenstep.plan.policy import Plan, Policy, Proposal, Window

__all__ = [
    "BucketedMaxTokens",
    "DocumentCost",
    "Even",
    "FixedBatch",
    "Groups",
    "LengthGrouped",
    "Lengths",
    "MaxTokens",
    "PipelineSchedule",
    "Plan",
    "Policy",
    "PoolSort",
    "Proposal",
    "SequencePacking",
    "Sorted",
    "TokenBudget",
    "Window",
    "WorkloadPacking",
    "auto_thresholds",
]
