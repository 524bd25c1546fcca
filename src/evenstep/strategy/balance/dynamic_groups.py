"""Samples to groups of ranks, other groups in every micro-batch: dynamic context parallelism.

Buckets are ranks then. A group is some neighbouring buckets that share their samples in one
micro-batch; the samples count as those of its first bucket. Costs are a `DocumentCost`, since work
is equal only if it is known what a part of a document costs.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.dynamic_context import ContextPlan, DynamicContext, Exchange
from evenstep.plan.dynamic_context import plan_dynamic_context as plan_groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.strategy.assignment import Assignment
from evenstep.strategy.mesh import Buckets
from evenstep.strategy.sample_costs import CostFunction


def options_of(
    buckets: Buckets,
    cost: CostFunction | None,
    *,
    exchange: Exchange | None,
    micro_batches: int,
    max_tokens: int | None,
    limits_memory: bool,
) -> DynamicContext:
    """Options of the planner.

    Args:
        cost: a cost that `DocumentCost.of` takes; None is its default.
        micro_batches: what the number of micro-batches is a multiple of.
        max_tokens: of a rank in a micro-batch.
        limits_memory: whether the graph has a limit of memory.

    Raises:
        ConfigurationError: the graph asks for what groups do not go with.
    """
    if buckets.axis != "CP" or buckets.group_count > 1:
        raise ConfigurationError(
            f"samples are distributed at {buckets.axis}, in {buckets.group_count} groups; with "
            'context_parallel="dynamic" call distribute("CP"), where each rank is a bucket, '
            "without group_size"
        )
    if max_tokens is None:
        raise ConfigurationError(
            'context_parallel="dynamic" needs max_tokens, which a rank holds in a micro-batch; '
            "give it to balance or to the job"
        )
    if limits_memory:
        raise ConfigurationError(
            'memory(...) has no meaning with context_parallel="dynamic", where ranks hold parts of '
            "samples; leave it out, and lower max_tokens"
        )
    return DynamicContext(
        ranks=buckets.bucket_count,
        tokens_per_rank=max_tokens,
        cost=DocumentCost() if cost is None else DocumentCost.of(cost),  # type: ignore[arg-type]
        exchange=exchange or Exchange(),
        multiple_of=micro_batches,
    )


def assign_groups(
    tokens: Int64Array, options: DynamicContext
) -> tuple[Assignment, Int64Array] | None:
    """All samples to groups.

    Args:
        tokens: [samples] at least 1, and no more than all ranks hold.

    Returns:
        The assignment, and [buckets, micro_batches] the first bucket of the group that each is in.
        None if there are too few samples for every micro-batch to have one.
    """
    plan = plan_groups(tokens, options)
    counts = np.diff(plan.offsets)
    owner = _with_documents(plan, counts)
    if owner is None:
        return None
    group = np.arange(len(plan)).repeat(counts)  # [samples] in the order of the plan
    columns = np.empty((3, len(tokens)), np.int64)
    columns[0, plan.documents] = owner[plan.micro_batch[group], plan.first[group]]
    columns[1, plan.documents] = plan.micro_batch[group]
    columns[2, plan.documents] = np.arange(len(tokens)) - plan.offsets[group]
    made = Assignment.of(*columns, buckets=plan.ranks, micro_batches=plan.micro_batches)
    return made, owner.T.copy()


def _with_documents(plan: ContextPlan, counts: Int64Array) -> Int64Array | None:
    """[micro_batches, ranks] the first rank of each one's group. Ranks without documents, of which
    there are some where documents are few, join the group before them, or else the one after."""
    owner = np.full((plan.micro_batches, plan.ranks), -1, np.int64)
    held = np.flatnonzero(counts)
    owner[plan.micro_batch[held], plan.first[held]] = plan.first[held]
    owner = np.maximum.accumulate(owner, axis=1)
    if (owner[:, -1] < 0).any():
        return None
    for row in owner:
        lead = int(np.count_nonzero(row < 0))
        if lead:
            row[row == row[lead]] = 0
            row[:lead] = 0
    return owner
