"""Dynamic groups in the step-time model, against what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.wlb.cluster_assumptions import MODELS, Cluster, ClusterAssumptions
from benchmarks.papers.wlb.dynamic_steps import dynamic_options, dynamic_step, speedup
from benchmarks.papers.wlb.step_time_model import StepModel
from evenstep.plan.dynamic_context import ContextPlan
from evenstep.plan.sharding import METHODS, shard, shard_per_document
from evenstep.tools.simulate import sample_lengths

INSTANT = Cluster(inside=1e18, between=1e18, collective=0.0)


def setting(**changes: Any) -> ClusterAssumptions:
    fields: dict[str, Any] = {
        "model": MODELS["7B"],
        "context": 8192,
        "tensor": 1,
        "context_ranks": 4,
        "stages": 1,
        "data": 1,
    }
    return ClusterAssumptions(**{**fields, **changes})


def test_a_micro_batch_takes_as_long_as_its_slowest_group() -> None:
    model = StepModel.of(setting(), cluster=INSTANT)
    lengths = np.array([6000, 900, 800])
    plan = ContextPlan(
        ranks=4,
        micro_batches=1,
        micro_batch=np.zeros(2, np.int64),
        first=np.array([0, 3]),
        size=np.array([3, 1]),
        documents=np.array([0, 1, 2]),
        offsets=np.array([0, 1, 3]),
    )
    shared = shard(lengths[:1], 3, latency=model.latency, methods=METHODS, even=True)
    long = model.attention(shared) + model.linear(np.array([6000]), np.array([3]))[:, 0]
    alone = shard_per_document(lengths[1:], 1)
    short = model.attention(alone) + model.linear(np.array([1700]), np.array([1]))[:, 0]
    assert long.sum() > short.sum()
    expected = 32 * max(long[0], short[0]) + 32 * max(long[1], short[1])
    assert dynamic_step(model, plan, lengths) == pytest.approx(expected)


def test_exchange_is_paid_for_by_those_that_share() -> None:
    slow = replace(INSTANT, between=1e9, node=1)
    own = {ranks: StepModel.of(setting(), cluster=slow) for ranks in (1, 2, 4)}
    seconds = {
        ranks: model.linear(np.array([4096]), np.array([ranks])).sum()
        for ranks, model in own.items()
    }
    fast = StepModel.of(setting(), cluster=INSTANT)
    for ranks, each in seconds.items():
        received = 4096 * 2 * 4096 * 2 * (ranks - 1) / ranks
        without = fast.linear(np.array([4096]), np.array([ranks])).sum()
        assert each - without == pytest.approx(2 * received / 1e9, abs=1e-9)


def test_groups_are_planned_by_the_ratios_of_the_model() -> None:
    model = StepModel.of(setting(data=2))
    options = dynamic_options(model)
    assert (options.ranks, options.tokens_per_rank) == (8, 2560)
    one = np.array([8192])
    layer = model.linear(one, np.array([1])).sum()
    attention = model.attention(shard_per_document(one, 1)).sum()
    assert options.cost.linear / 8192 == pytest.approx(layer / attention, rel=0.01)
    sharing = StepModel.of(setting(data=2), cluster=replace(model.cluster, collective=0.0))
    exchange = sharing.linear(one, np.array([8])) - sharing.linear(one // 8, np.array([1]))
    relative = options.exchange.of(8, 8192) / (options.cost.linear * 8192)
    assert relative == pytest.approx(exchange.sum() / layer, rel=0.02)


def test_dynamic_groups_gain_on_long_tails_and_lose_nothing_where_all_are_alike() -> None:
    tail = StepModel.of(setting(context=262_144, context_ranks=8, tensor=4, data=2, stages=4))
    gain, ranks = speedup(tail, sample_lengths("sft-256k", 3500))
    assert gain > 1.1
    assert ranks > 8
    alike = StepModel.of(setting(context_ranks=1, data=4), cluster=INSTANT)
    gain, ranks = speedup(alike, np.full(400, 1024))
    assert gain == pytest.approx(1, rel=0.02)
    assert ranks == 1
