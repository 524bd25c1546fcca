from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.strategy.balance.inter import deal
from evenstep.strategy.balance.methods import METHODS

dealt = st.tuples(st.integers(1, 6), st.integers(1, 5)).flatmap(
    lambda shape: st.tuples(
        st.just(shape[0]),
        st.lists(
            st.integers(0, 1000), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]
        ).map(np.array),
    )
)


@given(dealt, st.sampled_from(METHODS), st.sampled_from([np.int64, np.float64]))
def test_every_bucket_gets_equally_many(
    given_costs: tuple[int, np.ndarray], method: str, kind: type
) -> None:
    buckets, costs = given_costs
    counts = np.bincount(deal(method, costs.astype(kind), buckets), minlength=buckets)
    assert counts.tolist() == [len(costs) // buckets] * buckets


@given(dealt, st.sampled_from([m for m in METHODS if m != "round_robin"]))
def test_no_bucket_is_above_another_by_more_than_the_costliest(
    given_costs: tuple[int, np.ndarray], method: str
) -> None:
    buckets, costs = given_costs
    loads = np.bincount(deal(method, costs, buckets), weights=costs, minlength=buckets)
    if method in ("greedy", "karmarkar_karp"):  # which may fall back on the other
        # A bucket that is full early can stay light, so only the bound of all dealings holds.
        ordered = np.sort(costs).reshape(-1, buckets)
        assert loads.max() - loads.min() <= (ordered[:, -1] - ordered[:, 0]).sum() + costs.max()
    else:
        assert loads.max() - loads.min() <= costs.max()


@given(dealt)
def test_karmarkar_karp_always_merges_the_two_parts_that_are_least_even(
    given_costs: tuple[int, np.ndarray],
) -> None:
    buckets, costs = given_costs
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


def test_a_users_method_must_give_equally_many_to_each() -> None:
    assert deal(lambda costs, bins: [1, 0, 1, 0], np.ones(4), 2).tolist() == [1, 0, 1, 0]
    with pytest.raises(ConfigurationError, match="gave from 1 to 3 micro-batches to a bucket"):
        deal(lambda costs, bins: [1, 0, 0, 0], np.ones(4), 2)
