"""Dynamic groups are compared with fixed groups and with ranks by length alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.plan.dynamic_context import DynamicContext, Exchange, plan_dynamic_context
from evenstep.tools.simulate.dynamic_context_baselines import (
    fixed_groups,
    powers_of_two_by_length,
)
from evenstep.tools.simulate.dynamic_context_run import measure_plan, run_dynamic_context


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
