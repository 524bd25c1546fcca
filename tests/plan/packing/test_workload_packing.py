"""`WorkloadPacking`: micro-batches of equal cost on all ranks, every document once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import SampleError
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.packing.workload_packing import WorkloadPacking
from evenstep.plan.pipeline import PipelineSchedule
from evenstep.tools.simulate import deal, sample_lengths, simulate
from plan_world import play

CONTEXT = 131_072


def test_all_micro_batches_of_all_ranks_cost_the_same_while_documents_arrive() -> None:
    lengths = sample_lengths("pretrain-128k", 4 * 6000, 2)
    shards = deal(len(lengths), 4)
    policy = WorkloadPacking(CONTEXT, micro_batches=4)
    result = simulate(policy, [lengths[shard] for shard in shards], identities=shards)
    assert result.costs.shape == (result.steps, 4 * 4)
    assert result.imbalance_arriving < 1.02
    assert (result.missing, result.duplicates, result.filler_steps) == (0, 0, 0)
    assert 0.9 * CONTEXT < result.tokens_per_step / 16 < 1.1 * CONTEXT
    # Documents are mixed in length: few steps are of long documents alone.
    assert result.composition > 0.25


def worked(policy: WorkloadPacking, sources: list[list[int]], buffer_size: int) -> list[np.ndarray]:
    """[ranks x micro_batches] cost, of every round."""
    cost = DocumentCost.of(policy.cost)
    return [
        np.concatenate(
            [cost(t.plan.groups.shapes(t.window.lengths), packed=True) for t in turns.values()]
        )
        for turns in play(policy, sources, buffer_size=buffer_size)
    ]


def test_where_all_documents_are_outliers_every_step_is_of_like_ones() -> None:
    """Each costs more than a micro-batch of its context would."""
    lengths = [110, 120] * 60
    policy = WorkloadPacking(100, micro_batches=2)
    steps = worked(policy, [lengths, [*lengths[1:], 110]], 20)
    for step in steps[:40]:
        assert len(step) == 4
        assert len(set(step.tolist())) == 1


def test_outliers_wait_for_a_rank_that_has_none() -> None:
    short = [10] * 400
    long = ([10] * 9 + [90]) * 40
    policy = WorkloadPacking(100, micro_batches=2, max_delay=6, cost=DocumentCost(linear=100))
    waits = []
    for turns in play(policy, [short, long], buffer_size=40):
        turn = turns.get(1)
        if turn is None or turn.window.exhausted:
            break
        emitted = turn.plan.groups.members
        outlier = turn.window.lengths[emitted] == 90
        waits += turn.window.ages[emitted][outlier].tolist()
        assert len(turn.plan.groups) == 2
    assert max(waits) <= 6 + 2
    assert waits[0] == 6


def test_a_document_over_the_cap_is_named_with_the_remedy() -> None:
    policy = WorkloadPacking(100, micro_batches=2)
    with pytest.raises(SampleError, match=r"sample 1 of rank 0 has 126 tokens.*truncate"):
        simulate(policy, [np.array([5, 126])])


LENGTHS = st.lists(st.integers(1, 8) | st.integers(1, 50), max_size=80)
SOURCES = st.lists(LENGTHS, min_size=1, max_size=4)


@given(
    SOURCES,
    st.integers(1, 40),
    st.integers(1, 3),
    st.integers(0, 6),
    st.sampled_from([DocumentCost(linear=10), DocumentCost(linear=1, quadratic=0)]),
)
def test_every_document_comes_once_under_the_cap_in_as_many_steps_on_all_ranks(
    sources: list[list[int]], buffer_size: int, count: int, max_delay: int, cost: DocumentCost
) -> None:
    policy = WorkloadPacking(40, micro_batches=count, max_delay=max_delay, cost=cost)
    seen: list[list[int]] = [[] for _ in sources]
    for turns in play(policy, sources, buffer_size=buffer_size):
        assert len({turn.steps for turn in turns.values()}) == 1
        for rank, turn in turns.items():
            assert turn.steps >= 1
            assert (np.diff(turn.plan.step_offsets) <= count).all()
            for group in turn.emitted:
                assert 1 <= sum(sources[rank][i] for i in group) <= 50
                seen[rank] += group
            # A window holds few documents, each step at least one of those that are due, and every
            # micro-batch half of what it may while more are.
            tokens = sum(sorted(turn.window.lengths.tolist()))
            assert turn.window.ages.max() <= max_delay + 1 + 2 * tokens // 25
    assert [sorted(each) for each in seen] == [list(range(len(source))) for source in sources]


def test_micro_batches_come_in_the_order_that_suits_the_pipeline() -> None:
    lengths = sample_lengths("pretrain-128k", 2000, 2).tolist()
    schedule = PipelineSchedule(stages=4)
    plain = WorkloadPacking(CONTEXT, micro_batches=8)
    ordered = WorkloadPacking(CONTEXT, micro_batches=8, schedule=schedule)
    one, other = (worked(p, [lengths], 500) for p in (plain, ordered))
    assert [sorted(a.tolist()) for a in one] == [sorted(b.tolist()) for b in other]
    assert any((a != b).any() for a, b in zip(one, other))
