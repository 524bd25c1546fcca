"""Places of ranks in a mesh, and who delivers to whom."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenstep.errors import ConfigurationError
from evenstep.strategy.mesh import AXES, DIVIDING_AXES, STAGES, ClientPlaceTree, Place, ranges

sizes_of_meshes = st.permutations(AXES).flatmap(
    lambda order: st.tuples(*[st.integers(1, 4)] * 4).map(lambda sizes: dict(zip(order, sizes)))
)


def places(tree: ClientPlaceTree) -> list[Place]:
    return [Place(*where) for where in product(*(range(tree.sizes[axis]) for axis in AXES))]


def bucket_at(tree: ClientPlaceTree, place: Place, axis: str) -> int:
    return int(tree.bucket_of(axis)[place.PP, place.DP, place.CP, place.TP])


@given(sizes_of_meshes)
def test_ranks_count_with_the_last_named_axis_fastest(sizes: dict[str, int]) -> None:
    tree = ClientPlaceTree.of(sizes)
    ranks = [tree.rank(dict(zip(sizes, where))) for where in product(*map(range, sizes.values()))]
    assert ranks == list(range(len(tree)))


@given(sizes_of_meshes)
def test_rank_and_place_are_inverse(sizes: dict[str, int]) -> None:
    tree = ClientPlaceTree.of(sizes)
    assert [tree.place(tree.rank(place)) for place in places(tree)] == places(tree)


@given(sizes_of_meshes, st.sampled_from(DIVIDING_AXES))
def test_clients_share_a_bucket_where_they_differ_only_in_stages_and_inner_axes(
    sizes: dict[str, int], axis: str
) -> None:
    tree = ClientPlaceTree.of(sizes)
    kept = AXES if axis == "WORLD" else AXES[1 : AXES.index(axis) + 1]
    bucket_of = {}
    for place in places(tree):
        key = tuple(getattr(place, each) for each in kept)
        bucket = bucket_at(tree, place, axis)
        assert bucket_of.setdefault(key, bucket) == bucket
    assert sorted(bucket_of.values()) == list(range(tree.bucket_count(axis)))
    assert [bucket_of[key] for key in sorted(bucket_of)] == sorted(bucket_of.values())


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"EP": 2}, "axis 'EP' must be one of"),
        ({"DP": 0}, "DP=0 must be a whole number of ranks from 1"),
        ({"DP": 2.0}, "DP=2.0 must be"),
    ],
)
def test_a_mesh_that_cannot_be_is_refused(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ClientPlaceTree.of(sizes)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.place(8), r"rank 8 is not a client of the mesh .* whose ranks are 0-7"),
        (lambda t: t.rank({"DP": 4}), "DP=4 must be from 0 to 3"),
        (lambda t: t.rank({"DP": -1}), "DP=-1 must be from 0 to 3"),
        (lambda t: t.rank({"EP": 0}), "axis 'EP' must be one of"),
        (lambda t: t.bucket_count("PP"), "stages of a pipeline work on the same samples"),
        (lambda t: t.bucket_count("dp"), "axis 'dp' must be one of .'DP', 'CP', 'TP', 'WORLD'"),
        (lambda t: t.delivery("DP", ["WORLD"]), "axis 'WORLD' must be one of"),
        (lambda t: t.delivery("DP", stages="last"), "stages='last' must be one of"),
        (lambda t: ClientPlaceTree(t.ranks // 2), "ranks 0-3 are negative or stand for several"),
        (lambda t: ClientPlaceTree(t.ranks[0, 0, 0]), r"shape \(2,\) must be \[PP, DP, CP, TP\]"),
    ],
)
def test_what_the_mesh_does_not_have_is_refused_by_name(call, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        call(ClientPlaceTree.of({"DP": 4, "TP": 2}))


def test_ranks_in_a_row_are_told_as_ranges() -> None:
    assert ranges(np.array([7, 1, 2, 3, 9])) == "1-3, 7, 9"
    assert ranges(np.arange(0, 40, 2)).endswith("14, and 12 more ranges")


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
        assert bucket == bucket_at(tree, place, axis) == delivery.bucket_of(int(rank))
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
        assert delivery.is_fetched[bucket] == bool(asked_by)


def test_a_tree_of_any_ranks_delivers_to_those_that_it_has() -> None:
    tree = ClientPlaceTree.of({"DP": 3, "TP": 2})
    left = ClientPlaceTree(np.delete(tree.ranks, 0, axis=1))
    assert left.delivery("DP", ["TP"]).fetching.tolist() == [2, 4]
