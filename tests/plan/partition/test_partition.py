from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.plan.partition import bins_needed, partition
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import largest_first, whole_by_group, whole_costs
from evenstep.plan.partition.karmarkar_karp import karmarkar_karp

few = settings(max_examples=30)


@dataclass
class World:
    costs: np.ndarray
    tokens: np.ndarray
    bins: int
    cap: int


@st.composite
def worlds(draw: st.DrawFn, largest: int = 60) -> World:
    """Items, and a cap under which there is a partition, now loose and now tight."""
    count, bins = draw(st.integers(0, largest)), draw(st.integers(1, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    tokens = rng.integers(1, draw(st.sampled_from([1, 5, 300])), count, endpoint=True)
    kind = draw(st.sampled_from(["cost", "unrelated", "few values", "float"]))
    costs = {
        "cost": tokens * (tokens + 50),
        "unrelated": rng.integers(0, 10**6, count),
        "few values": rng.integers(0, 3, count),
        "float": rng.lognormal(0, 2, count),
    }[kind]
    cap = max(int(tokens.max(initial=1)), -(-int(tokens.sum()) // bins))
    while bins_needed(tokens, cap) > bins:
        cap += 1 + cap // 50
    return World(costs, tokens, bins, cap + draw(st.sampled_from([0, 0, 1, 100])))


def documents(count: int, seed: int, sigma: float = 1.4, longest: int = 131_072) -> np.ndarray:
    """Most are short, some fill the whole context."""
    lengths = np.exp(np.random.default_rng(seed).normal(np.log(1024), sigma, count))
    return lengths.astype(np.int64).clip(16, longest)


def quadratic(lengths: np.ndarray) -> np.ndarray:
    return lengths * (lengths + 8192)


def differences_of(costs: np.ndarray, bins: int) -> list[int]:
    """The loads that Karmarkar-Karp gives, with a full list of loads for every item."""
    parts = [[0] * (bins - 1) + [c] for c in costs.tolist()]
    while len(parts) > 1:
        parts.sort(key=lambda p: p[0] - p[-1])
        first, second, *parts = parts
        parts.append(sorted(a + b for a, b in zip(first, reversed(second))))
    return parts[0]


@given(worlds(), st.booleans())
@few
def test_every_item_is_in_one_bin_within_the_cap_and_exchanges_never_raise_the_largest_load(
    world: World, capped: bool
) -> None:
    given_ = world.costs.copy(), world.tokens.copy()
    limits: Any = {"tokens": world.tokens, "cap": world.cap if capped else None}
    made = partition(world.costs, world.bins, **limits)
    assert len(made.loads) == world.bins
    assert made.bin_of.dtype == np.int64
    assert made.loads.dtype == world.costs.dtype
    assert made.tokens is not None
    assert not capped or made.tokens.max() <= world.cap
    for b in range(world.bins):
        assert made.loads[b] == pytest.approx(world.costs[made.bin_of == b].sum())
        assert made.tokens[b] == world.tokens[made.bin_of == b].sum()
    assert made.bin_of.tolist() == partition(world.costs, world.bins, **limits).bin_of.tolist()
    assert (world.costs == given_[0]).all()
    assert (world.tokens == given_[1]).all()
    whole = whole_costs(world.costs)
    greedy = place(whole, world.bins, **limits)
    if greedy is not None:
        before = np.bincount(greedy, whole, world.bins).max()
        assert np.bincount(made.bin_of, whole, world.bins).max() <= before
    if world.costs.dtype == np.int64:  # of type float, half of them are divided alike
        halved = partition(world.costs / 2, world.bins, **limits)
        assert halved.bin_of.tolist() == made.bin_of.tolist()
        assert halved.loads.tolist() == (made.loads / 2).tolist()


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 2**32))
@few
def test_karmarkar_karp_is_as_with_a_load_for_every_bin(count: int, bins: int, seed: int) -> None:
    # Of such costs no two differences are equal, so that there is one outcome.
    costs = np.random.default_rng(seed).integers(1, 1 << 55, count)
    found = karmarkar_karp(costs, bins, largest_first(costs))
    loads = np.zeros(bins, np.int64)
    np.add.at(loads, found, costs)
    assert sorted(loads.tolist()) == sorted(differences_of(costs, bins))


@given(st.lists(worlds(30), max_size=4), st.integers(1, 6))
@few
def test_karmarkar_karp_of_groups_is_that_of_each(groups: list[World], bins: int) -> None:
    costs = np.concatenate([np.zeros(0), *(world.costs for world in groups)])
    if all(world.costs.dtype == np.int64 for world in groups):
        costs = costs.astype(np.int64)
    ends = np.cumsum([len(world.costs) for world in groups], dtype=np.int64)
    whole = whole_by_group(costs, ends)
    order, expected = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for part in np.split(np.arange(len(costs)), ends[:-1]) if groups else []:
        alone = whole_costs(costs[part])
        assert (whole[part] == alone).all()
        order.append(part[largest_first(alone)])
        expected.append(karmarkar_karp(alone, bins, largest_first(alone)))
    found = karmarkar_karp(whole, bins, np.concatenate(order), ends=ends)
    assert found.tolist() == np.concatenate(expected).tolist()


# How good


@pytest.mark.parametrize(("sigma", "cap"), [(1.4, 32_768), (1.0, 16_384)])
def test_batches_that_fill_the_cap_are_divided_within_it_and_evenly(sigma: float, cap: int) -> None:
    above = []
    for seed in range(20):
        lengths = documents(256, seed, sigma, cap)
        bins = bins_needed(lengths, cap)
        made = partition(quadratic(lengths), bins, tokens=lengths, cap=cap)
        assert made.tokens is not None
        assert made.tokens.max() <= cap
        above.append(made.loads.max() / max(made.loads.mean(), quadratic(lengths).max()))
    assert np.mean(above) < 1.02


# Hard caps


@pytest.mark.parametrize(
    ("costs", "tokens", "cap"),
    [([9, 1, 7], [2, 9, 5], 9), ([4, 4, 8, 6, 5], [5, 5, 6, 8, 5], 15)],
    ids=["by tokens", "best fit"],
)
def test_where_the_costliest_first_finds_no_room_another_way_does(
    costs: list[int], tokens: list[int], cap: int
) -> None:
    assert place(np.array(costs), 2, tokens=np.array(tokens), cap=cap) is None
    made = partition(costs, 2, tokens=tokens, cap=cap)
    assert made.tokens is not None
    assert made.tokens.max() <= cap


# What is refused


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bins": 0}, "bins=0 must be at least 1"),
        ({"bins": 2.0}, "bins=2.0 must be an integer"),
        ({"cap": 10}, "cap=10 needs the tokens of each item"),
        ({"cap": 0, "tokens": [1, 1, 1]}, "cap=0 must be at least 1"),
        ({"cap": 2**31, "tokens": [1, 1, 1]}, "must be at most 2,147,483,647"),
        ({"tokens": [1, 2]}, "tokens has 2 entries for 3 items"),
        ({"tokens": [1, 0, 2]}, r"tokens\[1\]=0 must be at least 1"),
        ({"tokens": [1.5, 1, 2]}, r"type float64 must be \[items\] integers"),
        ({"costs": [1, -2, 3]}, r"costs\[1\]=-2 must be finite and not negative"),
        ({"costs": [1, 2, np.nan]}, r"costs\[2\]=nan must be finite"),
        ({"costs": [[1, 2], [3, 4]]}, r"shape \(2, 2\)"),
        ({"costs": ["a"]}, "numbers"),
        ({"costs": [2**61, 2**61, 1]}, r"stay below 2\*\*62"),
        ({"costs": [1e308, 1e308, 1.0]}, "costs sum to inf"),
        ({"cap": 7, "tokens": [3, 8, 1]}, "item 1 has 8 tokens, over cap=7; truncate or split"),
        (
            {"cap": 7, "tokens": [5, 5, 5]},
            "3 items of 15 tokens do not fit into bins=2 of cap=7 tokens: take 3 bins",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_with_value_limit_and_remedy(
    arguments: dict[str, Any], message: str
) -> None:
    given_ = {"costs": [1, 2, 3], "bins": 2} | arguments
    with pytest.raises(ConfigurationError, match=message):
        partition(given_.pop("costs"), given_.pop("bins"), **given_)
