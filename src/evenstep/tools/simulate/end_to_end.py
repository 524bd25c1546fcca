"""The time of steps end to end: dynamic groups of ranks, compared with WLB-LLM and steady packing.

All of them train on the same documents, one global batch in each step, on the same GPUs. A step of
dynamic groups divides all context- and data-parallel ranks into groups; each of its micro-batches
takes as long as its slowest group. For all of them alike, the exchange of keys and values either
overlaps with attention, as the planner of dynamic groups assumes, or does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.dynamic_context import (
    ContextPlan,
    DynamicContext,
    Exchange,
    plan_dynamic_context,
)
from evenstep.plan.packing import DocumentCost, SteadyOptions, auto_thresholds, plan_step
from evenstep.plan.packing.options import PackingOptions
from evenstep.plan.sharding import METHODS, Sharding, shard, shard_per_document
from evenstep.tools.simulate.packing_run import (
    ArrivingDocuments,
    run_original,
    run_planner,
)
from evenstep.tools.simulate.step_time_model import BYTES, SHARDINGS, MicroBatches, StepModel

_ROOM = 1.25
"""Tokens of a micro-batch over those of the context window, at most; for every way of packing."""
_QUEUES = 2


def run_end_to_end(
    model: StepModel,
    lengths: Int64Array,
    *,
    hidden: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, float]:
    """Predicts the steps of a job by four ways of packing.

    ``plain`` is original packing, sharded per sequence; ``wlb`` packs with queues of outliers and
    shards adaptively; ``steady`` is steady packing in the order that suits the pipeline, with
    hybrid sharding too; ``dynamic`` makes dynamic groups.

    Args:
        lengths: [documents] int64 in order of arrival; cut where original packing cuts them, at the
            context window. What waits when they end counts for no side.
        hidden: whether the exchange overlaps with attention.
        progress: called with (done, total) ways of packing.

    Returns:
        Speedups of the ways over each other, by the seconds that each takes per unit of what the
        documents cost on one rank; the ``micro_batches`` of a step of dynamic groups on average,
        and the ``ranks_of_group_max``.

    Raises:
        ConfigurationError: they do not fill a step.
    """
    setting = model.setting
    arrivals = ArrivingDocuments.of(
        lengths, context=setting.context, micro_batches=setting.micro_batches
    )
    cost = model.document_cost()
    pieces = arrivals.pieces.lengths
    thresholds = auto_thresholds(pieces, context=setting.context, queues=_QUEUES, cost=cost)

    common: dict[str, Any] = {
        "context": setting.context,
        "micro_batches": setting.micro_batches,
        "cost": cost,
    }
    ways = {
        "plain": None,
        "wlb": PackingOptions(**common, thresholds=thresholds),
        "steady": SteadyOptions(**common),
    }
    packed = {}
    for done, (name, way) in enumerate(ways.items(), 1):
        packed[name] = _packed(model, arrivals, way, hidden, own=name == "steady")
        if progress is not None:
            progress(done, 4)
    options = dynamic_options(model)
    bounds = arrivals.bounds[: arrivals.complete + 1].tolist()
    steps = [pieces[first:end] for first, end in pairwise(bounds)]
    plans = [plan_dynamic_context(each, options) for each in steps]
    seconds = sum(
        dynamic_step(model, plan, each, hidden=hidden) for plan, each in zip(plans, steps)
    )
    if progress is not None:
        progress(4, 4)
    plain, wlb, steady = packed["plain"], packed["wlb"], packed["steady"]
    dynamic = seconds / _total(model, steps)
    return {
        "wlb_over_plain": plain / wlb,
        "steady_over_wlb": wlb / steady,
        "dynamic_over_plain": plain / dynamic,
        "dynamic_over_wlb": wlb / dynamic,
        "dynamic_over_steady": steady / dynamic,
        "micro_batches": sum(plan.micro_batches for plan in plans) / len(plans),
        "ranks_of_group_max": max(int(plan.size.max()) for plan in plans),
    }


def dynamic_options(model: StepModel) -> DynamicContext:
    """What dynamic groups are planned for: as many tokens on a rank as WLB-LLM has at most, and
    the model's own ratios of attention, other work and exchange."""
    setting, cluster = model.setting, model.cluster
    one = np.array([setting.context])
    pair = 2 * float(model.attention(shard_per_document(one, 1)).sum()) / setting.context**2
    token = float(model.linear(one, np.array([1])).sum()) / setting.context
    # Keys and values of a token, gathered forward and their gradients scattered backward.
    sent = 2 * 2 * setting.model.hidden_size / setting.tensor * BYTES
    unit = pair / 2
    return DynamicContext(
        ranks=setting.context_ranks * setting.data,
        tokens_per_rank=int(_ROOM * setting.context) // setting.context_ranks,
        cost=DocumentCost(linear=max(round(token / unit), 1)),
        exchange=Exchange(
            within=round(sent / cluster.inside / unit),
            between=round(sent / cluster.between / unit),
            node=max(cluster.node // setting.tensor, 1),
        ),
        pipeline=setting.stages > 1,
    )


def dynamic_step(
    model: StepModel, plan: ContextPlan, lengths: Int64Array, *, hidden: bool
) -> float:
    """Seconds of a step of dynamic groups.

    Args:
        lengths: [documents] that were planned.
        hidden: as for `run_end_to_end`.
    """
    attention = np.zeros((2, len(plan)))
    for group in range(len(plan)):
        row = lengths[plan.group(group)]
        if len(row):
            attention[:, group] = model.attention(_shared(model, row, int(plan.size[group])))
    both = model.layer(plan.tokens(lengths), attention, plan.size, hidden=hidden)
    slowest = np.zeros((2, plan.micro_batches))
    for passes, of_groups in zip(slowest, both):
        np.maximum.at(passes, plan.micro_batch, of_groups)
    return model.pipeline(slowest)


def _shared(model: StepModel, row: Int64Array, ranks: int) -> Sharding:
    if ranks == 1:
        return shard_per_document(row, 1)
    return shard(row, ranks, latency=model.latency, methods=METHODS, even=True)


def _packed(
    model: StepModel,
    arrivals: ArrivingDocuments,
    options: PackingOptions | None,
    hidden: bool,
    *,
    own: bool = False,
) -> float:
    """Seconds per unit of cost, of original packing without options.

    Args:
        own: whether sharding may be hybrid, and micro-batches are ordered.
    """
    if options is None:
        trained = run_original(arrivals, end="carry")
    else:
        trained = run_planner(partial(plan_step, options), arrivals, end="carry")[0]
    packed = MicroBatches.of(trained, model.setting.micro_batches)
    methods = SHARDINGS if own else SHARDINGS[:2]
    attention: Float64Array = model.attentions(packed, methods=methods)[
        SHARDINGS[0] if options is None else "adaptive"
    ]
    seconds = float(model.steps(packed, attention, ordered=own, hidden=hidden).sum())
    return seconds / _total(model, packed.documents)


def _total(model: StepModel, documents: Sequence[Int64Array]) -> int:
    """Cost of documents, each on one rank."""
    cost = dynamic_options(model).cost
    return sum(int(cost.of_documents(each).sum()) for each in documents)
