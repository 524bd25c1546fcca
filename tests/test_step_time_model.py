from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.papers.wlb.assumed_latency import assumed_latency
from benchmarks.papers.wlb.cluster_assumptions import (
    MODELS,
    TABLE_1,
    Cluster,
    ClusterAssumptions,
)
from benchmarks.papers.wlb.packing_run import ArrivingDocuments, Trained, run_original
from benchmarks.papers.wlb.step_time_model import MicroBatches, StepModel
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding import shard_per_document, shard_per_sequence

INSTANT = Cluster(inside=1e18, between=1e18, collective=0.0)
"""Links that take no time."""


def setting(**changes: Any) -> ClusterAssumptions:
    fields: dict[str, Any] = {
        "model": MODELS["7B"],
        "context": 8192,
        "tensor": 8,
        "context_ranks": 2,
        "stages": 4,
        "data": 1,
    }
    return ClusterAssumptions(**{**fields, **changes})


def packed(*documents: list[int], per: int = 4) -> MicroBatches:
    arrays = [np.array(lengths, np.int64) for lengths in documents]
    return MicroBatches(documents=arrays, per_step=per)


def mixed(per: int, seed: int = 0) -> MicroBatches:
    random = np.random.default_rng(seed)
    lengths = np.where(random.random(400) < 0.1, 6000, random.integers(20, 900, 400))
    arrivals = ArrivingDocuments.of(lengths.astype(np.int64), context=8192, micro_batches=per)
    return MicroBatches.of(run_original(arrivals, end="carry"), per)


def test_micro_batches_are_those_that_were_packed_in_the_order_of_their_sequences() -> None:
    trained = Trained(
        piece=np.arange(5),
        length=np.array([10, 20, 30, 40, 50]),
        step=np.array([7, 7, 8, 7, 8]),
        micro_batch=np.array([1, 0, 2, 1, 2]),
        seconds=0.0,
    )
    made = MicroBatches.of(trained, 3)
    assert [d.tolist() for d in made.documents] == [[20], [10, 40], [], [], [], [30, 50]]
    assert made.tokens.tolist() == [20, 50, 0, 0, 0, 80]
    assert made.steps == 2
    with pytest.raises(ConfigurationError, match="nothing was trained on"):
        MicroBatches.of(replace(trained, length=np.empty(0, np.int64)), 3)


def test_equal_micro_batches_take_what_1f1b_takes() -> None:
    model = StepModel.of(setting(context_ranks=1, tensor=1), cluster=INSTANT)
    batches = packed(*[[8192]] * 8)
    attention = model.attentions(batches)["per-sequence"]
    layer = attention + model.linear(batches.tokens)
    # Of one rank, all of a document: no gradients to sum, and links take no time.
    stage = 8 * layer[:, 0].sum()
    assert model.steps(batches, attention) == pytest.approx([7 * stage] * 2)


def test_a_step_waits_for_the_slowest_data_parallel_rank() -> None:
    one = StepModel.of(setting(), cluster=INSTANT)
    two = StepModel.of(setting(data=2), cluster=INSTANT)
    slow, fast = [[8192]] * 4, [[500]] * 4
    both = packed(*fast, *slow, per=8)
    alone = packed(*slow)
    steps = [
        model.steps(batches, model.attentions(batches)["per-document"])[0]
        for model, batches in ((two, both), (one, alone))
    ]
    assert steps[0] == pytest.approx(steps[1])


def test_attention_is_that_of_the_slowest_rank_forward_and_backward() -> None:
    model = StepModel.of(setting(context_ranks=4))
    lengths = [3000, 200, 200, 200, 4000]
    found = model.attentions(packed(lengths, [], [8192], [1], per=4))
    for name, make in (("per-sequence", shard_per_sequence), ("per-document", shard_per_document)):
        ranks = model.latency.of_ranks(make(lengths, 4))
        assert found[name][:, 0] == pytest.approx(ranks.max(axis=1))
        assert found[name][:, 1].tolist() == [0, 0]
    # Of one document, both are the same plan.
    assert found["per-sequence"][:, 2] == pytest.approx(found["per-document"][:, 2])


def test_adaptive_is_the_faster_of_both_in_every_micro_batch() -> None:
    model = StepModel.of(setting(context_ranks=4))
    found = model.attentions(mixed(4))
    best = np.minimum(found["per-sequence"].sum(axis=0), found["per-document"].sum(axis=0))
    assert found["adaptive"].sum(axis=0) == pytest.approx(best)


def test_linear_time_grows_with_tokens_and_is_shared_by_ranks() -> None:
    tokens = np.array([0, 4096, 8192])
    alone = StepModel.of(setting(tensor=1, context_ranks=1)).linear(tokens)
    assert (alone[:, 0] == 0).all()
    assert alone[:, 2] == pytest.approx(2 * alone[:, 1])
    shared = StepModel.of(setting(tensor=2, context_ranks=2), cluster=INSTANT).linear(tokens)
    assert shared == pytest.approx(alone / 4)
    slow = StepModel.of(setting(tensor=2, context_ranks=2)).linear(tokens)
    assert (slow[:, 1:] > shared[:, 1:]).all()


def test_the_matrix_products_of_a_layer_are_two_operations_a_parameter_and_token() -> None:
    model = StepModel.of(
        setting(tensor=1, context_ranks=1), cluster=replace(Cluster(), elementwise=0)
    )
    parameters = 4 * 4096**2 + 3 * 4096 * 11_008
    forward, backward = model.linear(np.array([1000]))[:, 0]
    assert forward == pytest.approx(2 * parameters * 1000 / (0.6 * 989e12))
    assert backward == pytest.approx(2 * forward)


def test_collectives_take_the_slower_link_where_they_leave_a_node() -> None:
    cluster = Cluster()
    assert cluster.gather(1e9, 1, 1) == 0
    inside, outside = cluster.gather(1e9, 2, 8), cluster.gather(1e9, 2, 16)
    assert inside == pytest.approx(20e-6 + 0.5e9 / 360e9)
    assert outside == pytest.approx(20e-6 + 0.5e9 / 40e9)


def test_costs_are_equal_where_attention_takes_as_long_as_the_rest() -> None:
    for job in TABLE_1:
        model = StepModel.of(job)
        linear = model.document_cost().linear
        context = np.array([job.context])
        plan = shard_per_document(context, job.context_ranks)
        ratio = float(model.attention(plan).sum() / model.linear(context).sum())
        assert ratio == pytest.approx(job.context / linear, rel=0.01)


def test_the_jobs_are_those_of_table_1() -> None:
    assert [job.gpus for job in TABLE_1] == [32, 32, 32, 64, 64, 128, 256, 256]
    assert [job.micro_batches for job in TABLE_1] == [8, *[4] * 7]
    for name, billions in (("550M", 0.55), ("7B", 6.74), ("30B", 30), ("70B", 70)):
        assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.03)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="32 heads, which 5 ranks cannot share"):
        setting(tensor=5)
    with pytest.raises(ConfigurationError, match="32 layers, which 3 ranks cannot share"):
        setting(stages=3)
    with pytest.raises(ConfigurationError, match="data=0"):
        setting(data=0)
    with pytest.raises(ConfigurationError, match="8 heads of 128, and a GPU of 7B-8K has 4"):
        StepModel.of(setting(), latency=assumed_latency(heads=8))
    model = StepModel.of(setting(data=2))
    batches = packed(*[[8192]] * 4)
    with pytest.raises(ConfigurationError, match=r"4 micro-batches, and 7B-8K takes 8"):
        model.steps(batches, model.attentions(batches)["per-document"])


def test_the_assumed_latency_has_the_facts_of_the_paper() -> None:
    latency = assumed_latency()
    keys = np.full(2, 8192)
    assert len(set(latency(np.array([16, 128]), keys))) == 1
    throughput, _ = latency.throughput(np.array([128, 256]), keys)
    assert throughput[1] > 1.5 * throughput[0]
    lengths = np.arange(128, 20_000, 128)
    both = np.stack(latency.throughput(lengths, np.full(len(lengths), 1 << 17)))
    assert (np.diff(both) >= 0).all()
    assert both.max() < 0.6 * 989e12


def test_by_the_assumed_latency_short_documents_stay_uncut_and_long_ones_do_not() -> None:
    latency = assumed_latency()
    for lengths, better, worse in (
        ([256] * 64, shard_per_sequence, shard_per_document),
        ([60_000, *[500] * 60], shard_per_document, shard_per_sequence),
    ):
        slowest = [latency.of_ranks(make(lengths, 4)).max(axis=1) for make in (better, worse)]
        assert (slowest[0] < slowest[1]).all()
