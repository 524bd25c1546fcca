from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.partition import bins_needed
from evenstep.plan.partition.greedy import fill_empty, place
from evenstep.strategy.balance.joint import by_bucket_first
from evenstep.strategy.balance.methods import METHODS, bins_by

lengths = st.lists(st.integers(1, 40), max_size=50).map(lambda found: np.array(found, np.int64))
sizes = st.integers(1, 5)
caps = st.integers(40, 90) | st.none()


@given(lengths, sizes, sizes, caps, st.sampled_from(METHODS))
def test_no_micro_batch_is_empty_or_over_the_cap(
    tokens: np.ndarray, buckets: int, micro_batches: int, cap: int | None, method: str
) -> None:
    bins = buckets * micro_batches
    found = by_bucket_first(method, tokens * tokens, tokens, buckets, micro_batches, cap)
    if found is None:
        assert cap is not None
        assert bins_needed(tokens, cap) <= bins
        return
    placed = found >= 0
    assert placed.tolist() == sorted(placed.tolist(), reverse=True)
    counts = np.bincount(found[placed], minlength=bins)
    assert (counts > 0).sum() == min(bins, len(tokens))
    if cap is None:
        assert placed.all()
        return
    assert np.bincount(found[placed], weights=tokens[placed], minlength=bins).max() <= cap
    if not placed.all():
        assert bins_needed(tokens, cap) > bins
        more = tokens[: placed.sum() + 1]  # one more finds no room
        limits = {"tokens": more, "cap": cap, "per_group": micro_batches, "reopen": None}
        assert place(more * more, bins, **limits) is None


@pytest.mark.parametrize("method", ["greedy", "karmarkar_karp"])
def test_buckets_are_even_although_one_sample_costs_more_than_a_mean_micro_batch(
    method: str,
) -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    tokens = np.minimum(rng.lognormal(6, 1.2, 16 * 4 * 12).astype(int) + 1, 6_000)
    costs = tokens * tokens
    found = by_bucket_first(method, costs, tokens, 16, 4, None)
    assert costs.max() > 1.5 * costs.sum() / 64
    loads = np.bincount(found // 4, weights=costs)
    assert loads.max() / loads.mean() < 1.001


@given(lengths, sizes, sizes, caps, st.booleans())
def test_karmarkar_karp_makes_micro_batches_of_each_bucket_by_itself(
    tokens: np.ndarray, buckets: int, micro_batches: int, cap: int | None, whole: bool
) -> None:
    costs = tokens * tokens if whole else tokens**1.5
    found = by_bucket_first("karmarkar_karp", costs, tokens, buckets, micro_batches, cap)
    if cap is not None or found is None:
        return
    bucket_of = bins_by("karmarkar_karp", costs, buckets)
    expected = np.empty(len(tokens), np.int64)
    for bucket in range(buckets):
        rows = np.flatnonzero(bucket_of == bucket)
        within = bins_by("karmarkar_karp", costs[rows], micro_batches)
        expected[rows] = bucket * micro_batches + within
    assert found.tolist() == fill_empty(expected, costs, buckets * micro_batches).tolist()
