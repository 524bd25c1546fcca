"""Pure decisions: which samples form a group, and which groups form a step. NumPy only.

Nothing in here imports torch or ray, reads a clock or does I/O; equal arguments give equal plans.
"""

from evenstep.plan.even import Even
from evenstep.plan.fixed_batch import FixedBatch
from evenstep.plan.groups import Groups
from evenstep.plan.lengths import Lengths
from evenstep.plan.max_tokens import BucketedMaxTokens, MaxTokens
from evenstep.plan.ordering import LengthGrouped, Sorted
from evenstep.plan.packing.outliers import auto_thresholds
from evenstep.plan.packing.workload import Workload
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.pool_sort import PoolSort
from evenstep.plan.sequence_packing import SequencePacking
from evenstep.plan.token_budget import TokenBudget

__all__ = [
    "BucketedMaxTokens",
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
    "Workload",
    "WorkloadPacking",
    "auto_thresholds",
]
