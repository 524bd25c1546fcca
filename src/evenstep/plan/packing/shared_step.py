"""`SharedStep`: the documents of all ranks' windows, planned together, for ranks to share.

What `WorkloadPacking` does with ``context_parallel="dynamic"``. Every rank offers the lengths of
its oldest documents. From all offers each rank computes the same step: the oldest of every rank, as
far as a step has room, in as many micro-batches as they need. So steps have equal tokens, and whose
documents were long does not matter: any rank may train on any document.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.dynamic_context import ContextPlan, DynamicContext, plan_dynamic_context

_AHEAD = 2
"""A rank offers this many times its part of a step, as others may have less left."""


@dataclass(frozen=True, eq=False)
class SharedStep:
    """One step of all ranks. Documents are in the order of ranks, and of each rank's window."""

    plan: ContextPlan
    lengths: Int64Array
    """[documents] tokens of each."""
    reader: Int64Array
    """[documents] the rank in whose window it is."""
    costs: Float64Array
    """[ranks] predicted work of each: its shares of the documents of its groups."""


def check_context_parallel(given: int | str, ranks: int | None, **others: Any) -> None:
    """
    Args:
        others: options that have no meaning where groups of ranks share documents.

    Raises:
        ConfigurationError: they contradict each other.
    """
    if given != "dynamic":
        if isinstance(given, str):
            raise ConfigurationError(
                f"context_parallel={given!r} must be a number of ranks, or 'dynamic'"
            )
        check_at_least(1, context_parallel=given)
        if ranks is not None:
            raise ConfigurationError(
                f"ranks={ranks} is for context_parallel='dynamic'; leave it out"
            )
        return
    check_given(ranks=ranks)
    check_at_least(1, ranks=ranks)
    for name, value in others.items():
        if value not in (None, ()):
            raise ConfigurationError(
                f"{name}={value!r} has no meaning with context_parallel='dynamic', where a long "
                "document waits for no other and micro-batches take equally long; leave it out"
            )


def too_long(sample: str, length: int, options: DynamicContext) -> SampleError:
    """The error for a document that all ranks together cannot hold."""
    return SampleError(
        f"{sample} has {length:,} tokens, over the {options.capacity:,} that {options.ranks} ranks "
        f"of max_tokens={options.tokens_per_rank:,} hold; split or truncate it "
        "(evenstep.CutDocuments), or raise max_tokens"
    )


def offer(lengths: Int64Array, part: int) -> Int64Array:
    """Lengths of the first documents of a window, for the other ranks: as many as may be planned.

    Args:
        lengths: [documents] of the window.
        part: tokens that a rank brings to a step if all bring as many.
    """
    count = int(np.searchsorted(lengths.cumsum(), _AHEAD * part)) + 1
    return lengths[:count]


def taken(offers: Int64Array, budget: int) -> Int64Array:
    """[ranks] how many documents of each offer the step has.

    Args:
        offers: [ranks, k] lengths, followed by zeros.
        budget: tokens of the step, at most, except for a first document of each rank.
    """
    begins = offers.cumsum(axis=1) - offers
    ranks, places = np.nonzero(offers)
    # Those with fewest tokens of their rank before them first: so ranks bring equal tokens.
    order = np.lexsort((ranks, begins[ranks, places]))
    held = offers[ranks, places][order].cumsum()
    count = max(int(np.searchsorted(held, budget, side="right")), int((places == 0).sum()))
    return np.bincount(ranks[order[:count]], minlength=len(offers))


def share(offers: Int64Array, budget: int, options: DynamicContext) -> SharedStep:
    """Plans what all ranks train on; arguments as for `taken`."""
    counts = taken(offers, budget)
    lengths = np.concatenate([row[:count] for row, count in zip(offers, counts)])
    plan = plan_dynamic_context(lengths, options)
    costs = options.cost.of_documents(lengths)[plan.documents]
    of_groups = np.add.reduceat(np.append(costs, 0), plan.offsets[:-1])
    of_groups[np.diff(plan.offsets) == 0] = 0
    loads = np.zeros(options.ranks)
    np.add.at(loads, _ranks_of(plan), (of_groups / plan.size).repeat(plan.size))
    return SharedStep(plan, lengths, np.arange(len(counts)).repeat(counts), loads)


def _ranks_of(plan: ContextPlan) -> Int64Array:
    """[sum of sizes] the ranks of each group, group after group."""
    begins = plan.size.cumsum() - plan.size
    return np.arange(int(plan.size.sum())) + (plan.first - begins).repeat(plan.size)
