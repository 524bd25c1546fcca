from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.strategy.mesh import AXES, DIVIDING_AXES, STAGES, ClientPlaceTree, Place

meshes = st.tuples(*[st.integers(1, 3)] * 4).map(
    lambda sizes: ClientPlaceTree.of(dict(zip(AXES, sizes)))
)
broadcasts = st.lists(st.sampled_from(AXES), unique=True)


@given(meshes, st.sampled_from(DIVIDING_AXES), broadcasts, st.sampled_from(STAGES))
def test_who_needs_data_gets_it_from_the_first_of_its_peers_and_from_nobody_else(
    tree: ClientPlaceTree, axis: str, broadcast_at: list[str], stages: str
) -> None:
    delivery = tree.delivery(axis, broadcast_at, stages=stages)
    last = tree.sizes["PP"] - 1
    needing = {"ends": {0, last}, "first": {0}, "all": set(range(last + 1))}[stages]
    fetched: dict[int, set[int]] = {}
    for rank, bucket, by in zip(delivery.ranks, delivery.bucket, delivery.fetched_by):
        place = tree.place(int(rank))
        assert bucket == tree.bucket(place, axis) == delivery.bucket_of(int(rank))
        assert by == delivery.fetcher_of(int(rank))
        if place.PP not in needing:
            assert by == -1
            continue
        first = Place(**{a: 0 if a in broadcast_at else getattr(place, a) for a in AXES})
        assert tree.place(int(by)) == first
        fetched.setdefault(int(by), set()).add(int(bucket))
    assert set(delivery.fetching.tolist()) == set(fetched)
    for rank in range(len(tree)):
        assert set(delivery.buckets_of(rank)) == fetched.get(rank, set())
    for bucket in range(tree.bucket_count(axis)):
        asked_by = [rank for rank, buckets in sorted(fetched.items()) if bucket in buckets]
        assert sorted(delivery.clients_of(bucket).tolist()) == asked_by
        assert delivery.is_fetched[bucket] == bool(asked_by)


@pytest.mark.parametrize("changed", ["remove", "replace"])
def test_a_changed_tree_delivers_to_the_ranks_that_it_has(changed: str) -> None:
    tree = ClientPlaceTree.of({"DP": 3, "TP": 2})
    tree = tree.remove("DP", 0) if changed == "remove" else tree.replace("DP", 0, [8, 9])
    delivery = tree.delivery("DP", ["TP"])
    expected = [2, 4] if changed == "remove" else [8, 2, 4]
    assert delivery.fetching.tolist() == expected
    assert (
        np.concatenate([delivery.clients_of(b) for b in range(len(expected))]).tolist() == expected
    )
