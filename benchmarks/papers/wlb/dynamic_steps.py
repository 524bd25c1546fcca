"""The time of steps end to end: dynamic groups of ranks, compared with WLB-LLM.

Both train on the same documents, one global batch in each step, on the same GPUs. A step of
dynamic groups divides all context- and data-parallel ranks into groups; each of its micro-batches
takes as long as its slowest group. For both, the exchange of keys and values overlaps with
attention, as the planner of dynamic groups assumes. The jobs are those of the paper's Table 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from benchmarks.papers.wlb.algorithm_1 import run_algorithm_1
from benchmarks.papers.wlb.cluster_assumptions import TABLE_1
from benchmarks.papers.wlb.packing_run import ArrivingDocuments
from benchmarks.papers.wlb.step_time_model import BYTES, MicroBatches, StepModel
from benchmarks.papers.wlb.thresholds import auto_thresholds
from evenstep.arrays import Int64Array
from evenstep.plan.dynamic_context import (
    ContextPlan,
    DynamicContext,
    Exchange,
    plan_dynamic_context,
)
from evenstep.plan.packing import DocumentCost
from evenstep.plan.sharding import METHODS, Sharding, shard, shard_per_document
from evenstep.tools.simulate import DISTRIBUTIONS, load_lengths

_ROOM = 1.25
"""Tokens of a micro-batch over those of the context window, at most; for both."""
_QUEUES = 2


def speedup(model: StepModel, lengths: Int64Array) -> tuple[float, int]:
    """The speedup of dynamic groups over WLB-LLM, which packs with queues of outliers and shards
    adaptively, by the seconds that each takes per unit of what the documents cost on one rank; and
    the most ranks of a group.

    Args:
        lengths: [documents] int64 in order of arrival; cut where original packing cuts them, at the
            context window. What waits when they end counts for no side.
    """
    setting = model.setting
    arrivals = ArrivingDocuments.of(
        lengths, context=setting.context, micro_batches=setting.micro_batches
    )
    pieces = arrivals.pieces.lengths
    bounds = arrivals.bounds[: arrivals.complete + 1].tolist()
    steps = [pieces[first:end] for first, end in pairwise(bounds)]
    options = dynamic_options(model)
    plans = [plan_dynamic_context(each, options) for each in steps]
    seconds = sum(dynamic_step(model, plan, each) for plan, each in zip(plans, steps))
    ratio = _wlb(model, arrivals) / (seconds / _total(model, steps))
    return ratio, max(int(plan.size.max()) for plan in plans)


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


def dynamic_step(model: StepModel, plan: ContextPlan, lengths: Int64Array) -> float:
    """Seconds of a step of dynamic groups.

    Args:
        lengths: [documents] that were planned.
    """
    attention = np.zeros((2, len(plan)))
    for group in range(len(plan)):
        row = lengths[plan.group(group)]
        if len(row):
            attention[:, group] = model.attention(_shared(model, row, int(plan.size[group])))
    both = model.layer(plan.tokens(lengths), attention, plan.size, hidden=True)
    slowest = np.zeros((2, plan.micro_batches))
    for passes, of_groups in zip(slowest, both):
        np.maximum.at(passes, plan.micro_batch, of_groups)
    return model.pipeline(slowest)


def _shared(model: StepModel, row: Int64Array, ranks: int) -> Sharding:
    if ranks == 1:
        return shard_per_document(row, 1)
    return shard(row, ranks, latency=model.latency, methods=METHODS, even=True)


def _wlb(model: StepModel, arrivals: ArrivingDocuments) -> float:
    """Seconds of WLB-LLM per unit of cost."""
    setting, cost = model.setting, model.document_cost()
    thresholds = auto_thresholds(
        arrivals.pieces.lengths, context=setting.context, queues=_QUEUES, cost=cost
    )
    trained = run_algorithm_1(arrivals, thresholds=thresholds, cost=cost)
    packed = MicroBatches.of(trained, setting.micro_batches)
    seconds = model.steps(packed, model.attentions(packed)["adaptive"], hidden=True)
    return float(seconds.sum()) / _total(model, packed.documents)


def _total(model: StepModel, documents: Sequence[Int64Array]) -> int:
    """Cost of documents, each on one rank."""
    cost = dynamic_options(model).cost
    return sum(int(cost.of_documents(each).sum()) for each in documents)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example: python -m benchmarks.papers.wlb.dynamic_steps --lengths sft-256k",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lengths", default="pretrain-128k", help="as evenstep simulate takes it")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    known = DISTRIBUTIONS.get(options.lengths)
    mean = known.mean if known else float(load_lengths(options.lengths).mean())
    print(f"speedup over WLB-LLM, predicted, {options.lengths}")
    for setting in TABLE_1:
        tokens = (options.steps + 1) * setting.micro_batches * setting.context
        lengths = load_lengths(options.lengths, samples=max(round(tokens / mean), 1))
        ratio, ranks = speedup(StepModel.of(setting), lengths)
        print(f"{setting.name}: {ratio:.3f}, groups of up to {ranks} ranks", flush=True)


if __name__ == "__main__":
    main()
