"""Policies by the names that commands give them, each built from the numbers that concern it.

`WorkloadPacking` is not among them: it packs documents, and has other options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from evenstep.cost import Cost
from evenstep.plan.policies.even import Even
from evenstep.plan.policies.fixed_batch import FixedBatch
from evenstep.plan.policies.pool_sort import PoolSort
from evenstep.plan.policies.sequence_packing import SequencePacking
from evenstep.plan.policies.token_budget import TokenBudget
from evenstep.plan.policy import Policy


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Options that policies are built from; each takes those that concern it."""

    max_tokens: int
    batch_size: int
    cost: Cost
    target_tokens: int | None = None
    """None is the policy's default, here and below."""
    sync: str | None = None


@dataclass(frozen=True)
class NamedPolicy:
    """Builds a policy from options; what is None there is the policy's default."""

    make: Callable[..., Policy]
    summary: str
    """For the help of commands."""
    takes: tuple[str, ...]
    """The fields of `PolicyOptions` that it is built from; all policies take `cost` too."""

    def __call__(self, options: PolicyOptions) -> Policy:
        given = {name: getattr(options, name) for name in (*self.takes, "cost")}
        return self.make(**{name: value for name, value in given.items() if value is not None})


POLICIES: Mapping[str, NamedPolicy] = {
    "even": NamedPolicy(
        Even,
        "Groups of equal cost on all ranks, padded.",
        ("max_tokens", "target_tokens", "sync"),
    ),
    "even-packed": NamedPolicy(
        partial(Even, packed=True),
        "Groups of equal cost on all ranks, not padded.",
        ("max_tokens", "sync"),
    ),
    "token-budget": NamedPolicy(
        TokenBudget,
        "Groups of like length in a token budget (ODB).",
        ("max_tokens",),
    ),
    "pool-sort": NamedPolicy(
        PoolSort,
        "Fixed-size batches of like length on all ranks.",
        ("batch_size",),
    ),
    "fixed-batch": NamedPolicy(
        FixedBatch, "Fixed-size batches in the sampler's order.", ("batch_size",)
    ),
    "sequence-packing": NamedPolicy(
        SequencePacking, "Groups packed best-fit decreasing, not padded.", ("max_tokens",)
    ),
}
