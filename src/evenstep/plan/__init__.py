"""Pure decisions: which samples form a group, and which groups form a step. NumPy only.

Nothing in here imports torch or ray, reads a clock or does I/O; equal arguments give equal plans.
In reading order:

```
policy                the contract: a window, a proposal, all ranks' messages, a plan
groups/               groups as two arrays, formed under a token budget, aligned across ranks
policies/             policies that see a window: `Even`, the default, and four others; a new policy
                      goes here, and its name into `policies.by_name`
offline/              policies that see all lengths, and the one that replays their plans online
epoch/                which samples of an epoch are left, for any number of ranks
packing/              documents to micro-batches of equal cost: the policy `WorkloadPacking`
partition/            items to bins of equal load
pipeline/             the order of micro-batches on a pipeline
sharding/             a sequence to context-parallel ranks
dynamic_context/      as many ranks for each document as it needs, anew in every micro-batch
plan_checks           what every plan is checked for before it is used
delegating_policy     base of policies that plan as another does
length_moments        how tokens are spread over lengths; the composition of a run
lengths, rng          lengths of a data set; one random stream for each use of a seed
argument_checks, plain_values    checks of options; options as text that is equal on all ranks
schema                checks of documents that were saved
```

Imports go one way, between files and between folders.
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
