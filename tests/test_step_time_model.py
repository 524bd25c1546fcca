from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.papers.wlb.cluster_assumptions import (
    MODELS,
    TABLE_1,
    Cluster,
    ClusterAssumptions,
)
from benchmarks.papers.wlb.packing_run import ArrivingDocuments, run_original
from benchmarks.papers.wlb.step_time_model import MicroBatches, StepModel
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


def test_the_jobs_are_those_of_table_1() -> None:
    assert [job.gpus for job in TABLE_1] == [32, 32, 32, 64, 64, 128, 256, 256]
    assert [job.micro_batches for job in TABLE_1] == [8, *[4] * 7]
    for name, billions in (("550M", 0.55), ("7B", 6.74), ("30B", 30), ("70B", 70)):
        assert MODELS[name].parameters / 1e9 == pytest.approx(billions, rel=0.03)
