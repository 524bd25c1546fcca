"""Samples to micro-batches and micro-batches to buckets, by every method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.plan.partition import bins_needed
from evenstep.plan.partition.greedy import place
from evenstep.strategy.balance.levels import deal
from evenstep.strategy.balance.methods import METHODS
from evenstep.strategy.balance.micro_batches import Bins, by_bucket_first, by_method, in_order

any_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(np.array)
kinds = st.sampled_from([np.int64, np.float64])


def check_bins(bin_of: np.ndarray, tokens: np.ndarray, bins: int, cap: int | None) -> None:
    placed = bin_of >= 0
    # Those left over were drawn last.
    assert placed.tolist() == sorted(placed.tolist(), reverse=True)
    counts = np.bincount(bin_of[placed], minlength=bins)
    held = np.bincount(bin_of[placed], weights=tokens[placed], minlength=bins)
    assert len(counts) == bins
    assert (counts > 0).sum() == min(bins, len(tokens))
    if cap is None:
        assert placed.all()
    else:
        assert held.max() <= cap


@given(
    any_lengths,
    st.integers(1, 12),
    st.integers(40, 90) | st.none(),
    st.sampled_from(METHODS),
    kinds,
    st.booleans(),
)
def test_bins_keep_to_the_cap_and_none_is_empty_and_the_last_drawn_wait(
    tokens: np.ndarray, bins: int, cap: int | None, method: str, kind: type, free: bool
) -> None:
    costs = (tokens * tokens).astype(kind)
    if cap is None and free:  # samples that cost nothing fill bins too
        costs = costs % 4
    bin_of = by_method(method, costs, tokens, bins, cap)
    check_bins(bin_of, tokens, bins, cap)
    if cap is not None and bins_needed(tokens, cap) <= bins:
        assert (bin_of >= 0).all()


@given(any_lengths, st.integers(1, 8), st.integers(40, 90))
def test_in_order_bins_are_consecutive_and_keep_to_the_cap(
    tokens: np.ndarray, bins: int, cap: int
) -> None:
    for limit in (cap, None):
        bin_of = in_order(tokens, bins, limit)
        check_bins(bin_of, tokens, bins, limit)
        placed = bin_of[bin_of >= 0]
        assert placed.tolist() == sorted(placed)


@given(st.integers(1, 6), st.integers(1, 5), st.data())
def test_karmarkar_karp_always_merges_the_two_parts_that_are_least_even(
    buckets: int, each: int, data: st.DataObject
) -> None:
    size = buckets * each
    costs = np.array(data.draw(st.lists(st.integers(0, 1000), min_size=size, max_size=size)))
    order = sorted(range(len(costs)), key=lambda i: (-costs[i], i))
    parts = [[[i] for i in order[k : k + buckets]] for k in range(0, len(order), buckets)]

    def load(members: list[int]) -> int:
        return sum(int(costs[i]) for i in members)

    def spread(part: list[list[int]]) -> int:
        return load(part[0]) - load(part[-1])

    while len(parts) > 1:
        first, second = sorted(range(len(parts)), key=lambda k: -spread(parts[k]))[:2]
        first, second = min(first, second), max(first, second)
        merged = [a + b for a, b in zip(parts[first], reversed(parts.pop(second)))]
        parts[first] = sorted(merged, key=load, reverse=True)
    expected = sorted(load(members) for members in parts[0])
    loads, greedy = (
        sorted(np.bincount(deal(method, costs, buckets), weights=costs, minlength=buckets).tolist())
        for method in ("karmarkar_karp", "greedy")
    )
    assert loads == min(expected, greedy, key=max)


@given(
    any_lengths,
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(40, 90) | st.none(),
    st.sampled_from(METHODS),
)
def test_no_micro_batch_is_empty_or_over_the_cap(
    tokens: np.ndarray, buckets: int, micro_batches: int, cap: int | None, method: str
) -> None:
    bins = buckets * micro_batches
    found = by_bucket_first(method, tokens * tokens, tokens, Bins(buckets, micro_batches, cap))
    if found is None:
        assert cap is not None
        assert bins_needed(tokens, cap) <= bins
        return
    check_bins(found, tokens, bins, cap)
    placed = found >= 0
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
    found = by_bucket_first(method, costs, tokens, Bins(16, 4, None))
    assert costs.max() > 1.5 * costs.sum() / 64
    loads = np.bincount(found // 4, weights=costs)
    assert loads.max() / loads.mean() < 1.001
