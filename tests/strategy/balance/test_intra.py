from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.partition import bins_needed
from evenstep.plan.partition.items import largest_first
from evenstep.strategy.balance.intra import by_method, in_order
from evenstep.strategy.balance.methods import METHODS, bins_by

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=60).map(np.array)
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
    lengths, st.integers(1, 12), st.integers(40, 90) | st.none(), st.sampled_from(METHODS), kinds
)
def test_bins_keep_to_the_cap_and_none_is_empty_and_the_last_drawn_wait(
    tokens: np.ndarray, bins: int, cap: int | None, method: str, kind: type
) -> None:
    costs = (tokens * tokens).astype(kind)
    bin_of = by_method(method, costs, tokens, bins, cap)
    check_bins(bin_of, tokens, bins, cap)
    if cap is not None and bins_needed(tokens, cap) <= bins:
        assert (bin_of >= 0).all()


@given(lengths, st.integers(1, 12), st.integers(40, 90) | st.none())
def test_in_order_bins_are_consecutive_samples(
    tokens: np.ndarray, bins: int, cap: int | None
) -> None:
    bin_of = in_order(tokens, bins, cap)
    check_bins(bin_of, tokens, bins, cap)
    placed = bin_of[bin_of >= 0]
    assert placed.tolist() == sorted(placed.tolist())


@given(lengths, st.integers(1, 8), st.integers(40, 90))
def test_in_order_the_largest_bin_is_the_least_that_consecutive_samples_need(
    tokens: np.ndarray, bins: int, cap: int
) -> None:
    bin_of = in_order(tokens, bins, cap)
    even = in_order(tokens, bins, None)
    if (bin_of < 0).any() or np.bincount(even, weights=tokens).max() <= cap:
        return
    # least[b][i]: the largest of b consecutive bins over the first i samples.
    running = np.append(0, tokens.cumsum())
    least = running.astype(float)
    for _ in range(bins - 1):
        least = np.array(
            [
                min(max(least[j], running[i] - running[j]) for j in range(i + 1))
                for i in range(len(running))
            ]
        )
    assert np.bincount(bin_of, weights=tokens).max() == least[-1]


@given(st.lists(st.integers(0, 3), min_size=5, max_size=30).map(np.array), st.sampled_from(METHODS))
def test_samples_that_cost_nothing_fill_bins_too(costs: np.ndarray, method: str) -> None:
    bin_of = by_method(method, costs, np.ones(len(costs), np.int64), 5, None)
    assert set(bin_of.tolist()) == set(range(5))


@given(lengths, st.integers(1, 12), kinds)
def test_round_robin_begins_at_the_first_bin_each_time(
    tokens: np.ndarray, bins: int, kind: type
) -> None:
    order = sorted(range(len(tokens)), key=lambda i: (-tokens[i], i))
    assert largest_first(tokens.astype(kind)).tolist() == order
    bin_of = bins_by("round_robin", tokens.astype(kind), bins)
    assert [bin_of[item] for item in order] == [k % bins for k in range(len(tokens))]


def test_a_users_method_is_used_as_it_is_and_held_to_the_cap() -> None:
    tokens = np.array([5, 1, 1, 5])

    def halves(costs: np.ndarray, bins: int) -> np.ndarray:
        return np.arange(len(costs)) * bins // len(costs)

    assert by_method(halves, tokens, tokens, 2, None).tolist() == [0, 0, 1, 1]
    assert by_method(halves, tokens, tokens, 2, 6).tolist() == [0, 0, 1, 1]

    def first(costs: np.ndarray, bins: int) -> list[int]:
        return [0] * len(costs)

    with pytest.raises(
        ConfigurationError, match=r"method first put 12 tokens into bin 0, over max_"
    ):
        by_method(first, tokens, tokens, 2, 6)


@pytest.mark.parametrize(
    ("given_bins", "words"),
    [
        ([0, 1], r"method .* gave int64 of shape \(2,\)"),
        ([0.0, 1.0, 0.0], "gave float64"),
        ([0, 1, 2], "gave bins from 0 to 2; with bins=2 they must be from 0 to 1"),
        ([0, -1, 1], "gave bins from -1 to 1"),
    ],
)
def test_a_users_method_that_gives_no_bins_is_refused(given_bins: list, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        bins_by(lambda costs, bins: given_bins, np.array([1, 2, 3]), 2)
