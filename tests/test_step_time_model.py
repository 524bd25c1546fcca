from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.papers.wlb.packing_run import Packed, Stream
from benchmarks.papers.wlb.step_time_model import SIZES, TABLE_1, StepModel
from evenstep.plan.sharding import shard_per_document, shard_per_sequence

MODEL = StepModel("7B-8K", *SIZES["7B"], context=8192, tensor=8, context_ranks=2)


def packed(*documents: list[int], per: int = 4) -> Packed:
    lengths = np.array([length for each in documents for length in each])
    stream = Stream(lengths, np.zeros_like(lengths), 8192, per)
    at = np.arange(len(documents)).repeat([len(each) for each in documents])
    return Packed(stream, np.arange(len(lengths)), at)


def test_equal_micro_batches_take_what_1f1b_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.papers.wlb.step_time_model.BETWEEN", 1e18)  # takes no time
    model = replace(MODEL, context_ranks=1, tensor=1)
    batches = packed(*[[8192]] * 8)
    attention = model.attentions(batches, ["per-sequence"])["per-sequence"]
    layer = attention[:, 0] + model.linear(np.array([8192]))[:, 0]
    # Of one rank, all of a document: no gradients to sum.
    assert model.steps(batches, attention) == pytest.approx([7 * 8 * layer.sum()] * 2)


def test_a_step_waits_for_the_slowest_data_parallel_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.papers.wlb.step_time_model.gather", lambda *_: 0.0)
    slow, fast = [[8192]] * 4, [[500]] * 4
    steps = [
        model.steps(batches, model.attentions(batches, ["per-document"])["per-document"])[0]
        for model, batches in (
            (replace(MODEL, data=2), packed(*fast, *slow, per=8)),
            (MODEL, packed(*slow)),
        )
    ]
    assert steps[0] == pytest.approx(steps[1])


def test_attention_is_that_of_the_slowest_rank_and_adaptive_is_the_faster_of_both() -> None:
    model = replace(MODEL, context_ranks=4)
    lengths = [3000, 200, 200, 200, 4000]
    found = model.attentions(packed(lengths, [], [8192], [1]), ["per-sequence", "per-document"])
    for name, make in (("per-sequence", shard_per_sequence), ("per-document", shard_per_document)):
        ranks = model.latency.of_ranks(make(lengths, 4))
        assert found[name][:, 0] == pytest.approx(ranks.max(axis=1))
        assert found[name][:, 1].tolist() == [0, 0]
    # Of one document, both are the same plan.
    assert found["per-sequence"][:, 2] == pytest.approx(found["per-document"][:, 2])
    best = np.minimum(found["per-sequence"].sum(axis=0), found["per-document"].sum(axis=0))
    assert found["adaptive"].sum(axis=0) == pytest.approx(best)


def test_the_jobs_are_those_of_table_1() -> None:
    gpus = [4 * job.tensor * job.context_ranks * job.data for job in TABLE_1]
    assert gpus == [32, 32, 32, 64, 64, 128, 256, 256]
    assert [job.micro_batches for job in TABLE_1] == [8, *[4] * 7]
    for job, billions in zip(TABLE_1[::2], (0.55, 6.74, 30, 70), strict=True):
        assert job.parameters / 1e9 == pytest.approx(billions, rel=0.03)
