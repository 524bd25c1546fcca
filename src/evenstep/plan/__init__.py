"""Pure decisions: which samples form a group, and which groups form a step. NumPy only.

Nothing in here imports torch or ray, reads a clock or does I/O; equal arguments give equal plans.
In reading order:

```
policy                the contract: a window, a proposal, all ranks' messages, a plan
groups                groups as two arrays, formed under a token budget, aligned across ranks;
                      multiples that a collate function pads to
policies/             policies that see a window: `Even`, the default, and four others; a new policy
                      goes here, and its name into `policies.by_name`
too_long              samples that are longer than a group may be, and what becomes of them
fit                   how many tokens a group may have under ``max_tokens="auto"``, by what
                      `loader/memory_watch` measures and ranks agree on in `protocol/agreed`
update_size           how many groups an optimizer update has, and how large they are
epoch                 which samples of an epoch are left, for any number of ranks
packing/              documents to micro-batches of equal cost: the policy `WorkloadPacking`
partition/            items to bins of equal load
pipeline              the order of micro-batches on a pipeline
sharding/             a sequence to context-parallel ranks
rebalance/            sequences that ranks already hold, such as rollouts, to micro-batches
label_reading         how models read labels, and how a job learns it from its samples
length_moments        how tokens are spread over lengths; the composition of a run
rng                   one random stream for each use of a seed
saved_state           the head that all saved states have, and what reads them
value_checks          checks of options, lengths and documents that were saved; options as text that
                      is equal on all ranks
```

Imports go one way, between files and between folders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from evenstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from evenstep.plan.groups import Groups as Groups
    from evenstep.plan.packing import DocumentCost as DocumentCost
    from evenstep.plan.packing import WorkloadPacking as WorkloadPacking
    from evenstep.plan.pipeline import PipelineSchedule as PipelineSchedule
    from evenstep.plan.policies.even import Even as Even
    from evenstep.plan.policies.fixed_batch import FixedBatch as FixedBatch
    from evenstep.plan.policies.pool_sort import PoolSort as PoolSort
    from evenstep.plan.policies.sequence_packing import SequencePacking as SequencePacking
    from evenstep.plan.policies.token_budget import TokenBudget as TokenBudget
    from evenstep.plan.policy import Plan as Plan
    from evenstep.plan.policy import Policy as Policy
    from evenstep.plan.policy import Proposal as Proposal
    from evenstep.plan.policy import Window as Window

__getattr__, __dir__ = lazy_names(__name__)
