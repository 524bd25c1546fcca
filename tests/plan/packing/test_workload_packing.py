"""`WorkloadPacking`: micro-batches of equal cost, on all ranks, whatever is buffered."""

from __future__ import annotations

import numpy as np
import pytest

from evenstep.cost import PaddedTokenCost, TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.outliers import auto_thresholds
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.pipeline.schedule import PipelineSchedule
from evenstep.tools.simulate import deal, sample_lengths, simulate
from plan_world import play

CONTEXT = 131_072
LENGTHS = sample_lengths("pretrain-128k", 6000, 2)
THRESHOLDS = auto_thresholds(LENGTHS, context=CONTEXT, queues=2)


def costs(policy: WorkloadPacking, sources: list[list[int]], buffer_size: int) -> list[np.ndarray]:
    """[steps, ranks x micro-batches] cost, of every round."""
    document_cost = DocumentCost.of(policy.cost)
    made = []
    for turns in play(policy, sources, buffer_size=buffer_size):
        for step in range(next(iter(turns.values())).steps):
            row = []
            for turn in turns.values():
                begin, end = turn.plan.step_offsets[step : step + 2]
                groups = turn.plan.groups.take(np.arange(begin, end))
                cost = document_cost(groups.shapes(turn.window.lengths), packed=True)
                row.append(np.pad(cost, (0, policy.micro_batches - len(cost))))
            made.append(np.concatenate(row))
    return made


@pytest.mark.parametrize("thresholds", [(), THRESHOLDS], ids=["steady", "queues"])
def test_micro_batches_of_a_step_are_of_equal_cost(thresholds: tuple[int, ...]) -> None:
    policy = WorkloadPacking(CONTEXT, micro_batches=4, thresholds=thresholds)
    made = np.stack(costs(policy, [LENGTHS.tolist()], 1024))
    imbalance = made.max(axis=1) / made.mean(axis=1)
    assert imbalance[:-4].mean() < 1.05
    sampled = [LENGTHS[i : i + 116] for i in range(0, 5800, 116)]
    naive = [DocumentCost().of_documents(s) for s in sampled]
    loads = np.array([[w[i::4].sum() for i in range(4)] for w in naive])
    assert (loads.max(axis=1) / loads.mean(axis=1)).mean() > 1.25


def test_ranks_agree_on_the_cost_of_a_step() -> None:
    policy = WorkloadPacking(CONTEXT, micro_batches=4, thresholds=THRESHOLDS)
    shards = deal(len(LENGTHS), 3, 0)
    result = simulate(policy, [LENGTHS[s] for s in shards], buffer_size=512)
    alone = simulate(policy, [LENGTHS[shards[0]]], buffer_size=512)
    assert result.missing == alone.missing == 0
    most = result.costs[: int(0.8 * len(result.costs))]
    apart = most.max(axis=1) / most.mean(axis=1)
    assert np.median(apart) < 1.001
    assert most.max(axis=1).sum() / most.mean(axis=1).sum() < 1.1


@pytest.mark.parametrize("thresholds", [(), THRESHOLDS], ids=["steady", "queues"])
def test_a_larger_buffer_changes_nothing_on_one_rank(thresholds: tuple[int, ...]) -> None:
    policy = WorkloadPacking(CONTEXT, micro_batches=4, thresholds=thresholds)
    made = [
        [turns[0].emitted for turns in play(policy, [LENGTHS.tolist()], buffer_size=size)]
        for size in (400, 1200)
    ]
    steps = int(0.9 * len(made[0]))
    assert made[0][:steps] == made[1][:steps]


def test_documents_come_in_order_but_for_outliers() -> None:
    policy = WorkloadPacking(CONTEXT, micro_batches=4, thresholds=THRESHOLDS)
    seen = []
    for turns in play(policy, [LENGTHS.tolist()], buffer_size=1024):
        seen += [i for group in turns[0].emitted for i in sorted(group)]
    order = np.array([i for i in seen if LENGTHS[i] < THRESHOLDS[0]])
    ordinary = np.flatnonzero(THRESHOLDS[0] > LENGTHS)
    assert np.abs(order - ordinary).max() < 4 * 4 * CONTEXT / LENGTHS.mean()  # four steps' worth


def test_micro_batches_come_in_the_order_that_suits_the_pipeline() -> None:
    schedule = PipelineSchedule(stages=4)
    plain = WorkloadPacking(CONTEXT, micro_batches=8, thresholds=THRESHOLDS)
    ordered = WorkloadPacking(CONTEXT, micro_batches=8, thresholds=THRESHOLDS, schedule=schedule)
    one, other = (costs(p, [LENGTHS[:2000].tolist()], 1024) for p in (plain, ordered))
    assert [sorted(a.tolist()) for a in one] == [sorted(b.tolist()) for b in other]
    assert any((a != b).any() for a, b in zip(one, other))


def test_a_model_gives_the_cost() -> None:
    model = TransformerCost(layers=32, hidden_size=4096, heads=32, ffn_size=11008)
    policy = WorkloadPacking(CONTEXT, micro_batches=2, cost=model)
    assert DocumentCost.of(policy.cost).linear > 10_000
    with pytest.raises(ConfigurationError, match="per_token and per_pair"):
        WorkloadPacking(CONTEXT, micro_batches=2, cost=lambda shapes, packed: shapes.tokens)
    assert DocumentCost.of(PaddedTokenCost()).quadratic == 0
