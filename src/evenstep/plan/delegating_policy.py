"""`DelegatingPolicy`: base of policies that plan as another policy does, except for some of it.

Every public member of `Policy` is forwarded, those that are added to it later as well. A subclass
overrides what it changes.
"""

from __future__ import annotations

from typing import Any

from evenstep.arrays import Int64Array
from evenstep.plan.policy import Plan, Policy, Proposal, Window


class DelegatingPolicy(Policy):
    """Plans as `policy` does."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def propose(self, window: Window) -> Proposal:
        return self.policy.propose(window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        return self.policy.settle(proposal, messages, rank)


def _forwarded(name: str) -> Any:
    return property(lambda delegating: getattr(delegating.policy, name))


for _name in vars(Policy):
    if not _name.startswith("_") and _name not in vars(DelegatingPolicy):
        setattr(DelegatingPolicy, _name, _forwarded(_name))
