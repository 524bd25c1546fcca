"""Dynamic groups are compared with fixed groups and with ranks by length alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planning.dynamic_context import draw_steps, measure_plan, run_dynamic_context
from benchmarks.planning.dynamic_context_baselines import (
    fixed_groups,
    powers_of_two_by_length,
)
from evenstep.plan.dynamic_context import DynamicContext, Exchange, plan_dynamic_context


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=40),
    ranks=st.sampled_from([1, 2, 4, 8]),
    degree=st.sampled_from([1, 2, 4, 8]),
)
def test_they_are_plans_of_all_documents_within_the_limit(
    lengths: list[int], ranks: int, degree: int
) -> None:
    options = DynamicContext(ranks=ranks, tokens_per_rank=80)
    documents = np.array(lengths, np.int64)
    powers_of_two_by_length(documents, options).check(documents, 80)
    plan = fixed_groups(documents, degree, options)
    assert (plan is None) == (degree > ranks)
    if plan is not None:
        plan.check(documents, 80)
        assert set(plan.size.tolist()) == {degree}
        worked = measure_plan(plan, documents, options)
        best = measure_plan(plan_dynamic_context(documents, options), documents, options)
        assert worked.tokens == best.tokens
        assert best.most_tokens <= 80


def test_ranks_by_length_are_the_fewest_powers_of_two_and_idle_ones_join() -> None:
    options = DynamicContext(ranks=8, tokens_per_rank=100)
    lengths = np.array([350, 120, 60, 60, 90])
    plan = powers_of_two_by_length(lengths, options)
    # 4 + 2 + 1 + 1 ranks; the shortest ones share no rank, so one of 60 waits.
    assert plan.micro_batches == 2
    assert plan.size[plan.micro_batch == 0].tolist() == [4, 2, 1, 1]
    assert plan.size[plan.micro_batch == 1].tolist() == [8]
    assert plan.group(4).tolist() == [3]


def test_documents_longer_than_a_fixed_group_holds_are_refused() -> None:
    options = DynamicContext(ranks=4, tokens_per_rank=100)
    assert fixed_groups(np.array([250, 10]), 2, options) is None
    assert fixed_groups(np.array([250, 10]), 3, options) is None
    assert fixed_groups(np.array([250, 10]), 4, options) is not None


def test_a_document_that_outlasts_its_micro_batch_shows_as_the_bound() -> None:
    # One document of many times a rank's work beside short ones, where exchange costs much.
    options = DynamicContext(ranks=32, tokens_per_rank=16_384, exchange=Exchange(between=20_000))
    found = run_dynamic_context([np.array([100_000] + [200] * 2000)], options)
    assert found["imbalance_worst_bound"] > 1.2
    assert found["imbalance_worst"] < 1.05 * found["imbalance_worst_bound"]


def test_pretraining_documents_on_64_ranks_meet_what_is_promised() -> None:
    options = DynamicContext(ranks=64, tokens_per_rank=16_384)
    result = run_dynamic_context(
        draw_steps("pretrain-128k", options, micro_batches=4, steps=2), options
    )
    assert 1 <= result["imbalance"] <= 1.02
    assert 1 <= result["step_time_over_bound"] <= 1.03
    assert result["tokens_per_rank_max"] <= 16_384
    assert result["ranks_per_document_mean"] < 8
    # A document of 128K fits on 8 ranks, not on 4.
    assert set(result["fixed"]) == {"8", "16", "32", "64"}
    for other in (result["by_length"], *result["fixed"].values()):
        assert other["tokens_per_rank_max"] <= 16_384
        assert other["step_time_over_bound"] > 1.2 * result["step_time_over_bound"]
    assert result["fixed"]["64"]["communication_share"] > 0.5


def test_documents_of_a_file_that_fit_nowhere_are_split(tmp_path: Path) -> None:
    np.save(tmp_path / "lengths.npy", np.array([5000] + [100] * 60))
    options = DynamicContext(ranks=4, tokens_per_rank=1000)
    drawn = draw_steps(str(tmp_path / "lengths.npy"), options, micro_batches=4, steps=1)
    assert max(each.max() for each in drawn) == 2500
