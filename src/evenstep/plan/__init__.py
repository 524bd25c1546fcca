"""Pure decisions: which samples form a group, and which groups form a step. NumPy only.

Nothing in here imports torch or ray, reads a clock or does I/O; equal arguments give equal plans.
"""

from evenstep.plan.even import Even
from evenstep.plan.fixed_batch import FixedBatch
from evenstep.plan.groups import Groups
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.token_budget import TokenBudget

__all__ = ["Even", "FixedBatch", "Groups", "Plan", "Policy", "Proposal", "TokenBudget", "Window"]
