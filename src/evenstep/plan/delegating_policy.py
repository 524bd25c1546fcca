"""`DelegatingPolicy`: a policy that stands in for another, and says of itself what the other says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.cost import MemoryLimit
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.sharding.sharding import Sharding

__all__ = ["DelegatingPolicy"]


class DelegatingPolicy(Policy):
    """Plans as `policy` does; a subclass changes some of it."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.cost = policy.cost
        self.packed = policy.packed
        self.micro_batches = policy.micro_batches
        self.context_parallel = policy.context_parallel

    @property
    def name(self) -> str:
        return self.policy.name

    @property
    def max_length(self) -> int | None:
        return self.policy.max_length

    @property
    def limit(self) -> MemoryLimit | None:
        return self.policy.limit

    @property
    def counts_patches(self) -> bool:
        return self.policy.counts_patches

    @property
    def looks_ahead(self) -> bool:
        return self.policy.looks_ahead

    def shard(self, lengths: Int64Array) -> Sharding:
        return self.policy.shard(lengths)

    def options(self) -> Mapping[str, Any]:
        return self.policy.options()

    @property
    def fingerprint(self) -> str:
        return self.policy.fingerprint

    def window_size(self, buffer_size: int) -> int:
        return self.policy.window_size(buffer_size)

    def window_size_at(self, buffer_size: int, round: int) -> int:
        return self.policy.window_size_at(buffer_size, round)

    def propose(self, window: Window) -> Proposal:
        return self.policy.propose(window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        return self.policy.settle(proposal, messages, rank)
