"""An order is a function of (seed, pass): every sample once a pass, from any position on."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from evenstep.data import ShardOrder

sizes = st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(any)
flags = st.booleans()


def places(order: ShardOrder, position: int, count: int) -> list[tuple[int, ...]]:
    found = (
        (part.pass_number, part.shard, index)
        for part in order.parts(position)
        for index in part.indices.tolist()
    )
    return list(itertools.islice(found, count))


@given(sizes, st.integers(0, 99), flags, flags, st.integers(0, 60))
def test_parts_from_any_position_say_what_where_says(sizes, seed, shards, samples, position):
    order = ShardOrder(sizes, seed=seed, name="a", shuffle_shards=shards, shuffle_samples=samples)
    expected = [tuple(order.where(p)) for p in range(position, position + 40)]
    assert places(order, position, 40) == expected
    begins = [part.position for part in itertools.islice(order.parts(position), 8)]
    counts = [len(part.indices) for part in itertools.islice(order.parts(position), 8)]
    assert begins == np.cumsum([position, *counts])[:-1].tolist()


@given(sizes, st.integers(0, 99), flags, flags, st.integers(0, 3))
def test_each_pass_has_every_sample_once_and_shards_whole(sizes, seed, shards, samples, number):
    order = ShardOrder(sizes, seed=seed, name="a", shuffle_shards=shards, shuffle_samples=samples)
    found = places(order, number * order.size, order.size)
    assert sorted(found) == [(number, s, i) for s, n in enumerate(sizes) for i in range(n)]
    assert len([key for key, _ in itertools.groupby(found, lambda f: f[1])]) == np.count_nonzero(
        sizes
    )


def test_passes_seeds_and_names_have_orders_of_their_own():
    def order(seed, name, number):
        return [
            w[1:] for w in places(ShardOrder([20] * 20, seed=seed, name=name), number * 400, 400)
        ]

    found = [order(*key) for key in [(0, "a", 0), (0, "a", 1), (1, "a", 0), (0, "b", 0)]]
    assert len({tuple(f) for f in found}) == 4
    assert order(0, "a", 1) == found[1]


def test_without_shuffling_the_stored_order_comes():
    order = ShardOrder([2, 0, 3], seed=1, name="a", shuffle_shards=False, shuffle_samples=False)
    assert places(order, 0, 6) == [
        (0, 0, 0), (0, 0, 1), (0, 2, 0), (0, 2, 1), (0, 2, 2), (1, 0, 0),
    ]  # fmt: skip
