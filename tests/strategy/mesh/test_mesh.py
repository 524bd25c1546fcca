"""Places of ranks in a mesh, who delivers to whom, and meshes of torch, as torchtitan names their
dimensions."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

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
    ("call", "words"),
    [
        (lambda t: ClientPlaceTree.of({"EP": 2}), "axis='EP' must be one of"),
        (lambda t: ClientPlaceTree.of({"DP": 0}), "DP=0 must be a whole number of ranks from 1"),
        (lambda t: ClientPlaceTree.of({"DP": 2.0}), "DP=2.0 must be"),
        (lambda t: t.place(8), r"rank 8 is not a client of the mesh .* whose ranks are 0-7"),
        (lambda t: t.rank({"DP": 4}), "DP=4 must be from 0 to 3"),
        (lambda t: t.rank({"DP": -1}), "DP=-1 must be from 0 to 3"),
        (lambda t: t.rank({"EP": 0}), "axis='EP' must be one of"),
        (lambda t: t.bucket_count("PP"), "stages of a pipeline work on the same samples"),
        (lambda t: t.bucket_count("dp"), "axis='dp' must be one of DP, CP, TP, WORLD"),
        (lambda t: t.delivery("DP", ["WORLD"]), "axis='WORLD' must be one of"),
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


# Meshes of torch


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...] | None) -> Any:
    """What of_mesh reads of a DeviceMesh, for more ranks than there are processes."""
    count = int(torch.tensor(shape).prod())
    return SimpleNamespace(mesh=torch.arange(count).reshape(shape), mesh_dim_names=names)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_device_mesh_of_four_ranks_says_what_each_rank_of_it_says(rank: int) -> None:
    """Of a group that exchanges nothing, so that the ranks need no processes."""
    dist.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
    try:
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
        mesh = init_device_mesh("cpu", (1, 2, 1, 1, 2), mesh_dim_names=names)
        tree = ClientPlaceTree.of_mesh(mesh)
        assert tree.sizes == {"PP": 1, "DP": 2, "CP": 1, "TP": 2}
        assert tree.ranks.ravel().tolist() == [0, 1, 2, 3]
        here = tree.place(rank)
        assert mesh.get_local_rank("dp_replicate") == here.DP
        assert mesh.get_local_rank("tp") == here.TP
        part = ClientPlaceTree.of_mesh(mesh["tp"])
        assert part.ranks.ravel().tolist() == [2 * here.DP, 2 * here.DP + 1]
    finally:
        dist.destroy_process_group()


@given(st.permutations(["pp", "dp_replicate", "dp_shard", "cp", "tp"]), st.data())
def test_both_halves_of_dp_count_as_one_axis_wherever_they_stand(
    names: list[str], data: st.DataObject
) -> None:
    shape = data.draw(st.tuples(*[st.integers(1, 3)] * 5))
    tree = ClientPlaceTree.of_mesh(mesh_of(shape, tuple(names)))
    where = dict(zip(names, data.draw(st.tuples(*(st.integers(0, n - 1) for n in shape)))))
    mesh = torch.arange(len(tree)).reshape(shape)
    rank = int(mesh[tuple(where[name] for name in names)])
    # Of the halves the one that comes first counts slowest.
    outer, inner = (name for name in names if name.startswith("dp"))
    inner_size = shape[names.index(inner)]
    expected = Place(
        PP=where["pp"], DP=where[outer] * inner_size + where[inner], CP=where["cp"], TP=where["tp"]
    )
    assert tree.place(rank) == expected


def test_all_meshes_of_torchtitan_that_tell_who_needs_which_data_are_alike() -> None:
    for shape, names in (
        ((2, 4, 1, 2), ("pp", "batch", "cp", "tp")),  # the mesh for data
        ((2, 1, 4, 1, 2), ("pp", "dp_replicate", "dp_shard", "cp", "tp")),
        ((2, 2, 2, 2), ("pp", "dp_shard_mod_ep", "dp_shard_in_ep", "tp")),  # with experts
    ):
        tree = ClientPlaceTree.of_mesh(mesh_of(shape, names))
        assert tree == ClientPlaceTree.of({"PP": 2, "DP": 4, "CP": 1, "TP": 2})


def test_a_mesh_that_says_too_little_is_refused() -> None:
    for names, words in (
        (None, "the DeviceMesh has no names"),
        (("dp", "ep"), "dimension 'ep' of the DeviceMesh is not one of"),
        (("fsdp", "tp"), "dimension 'fsdp' .* such as pp, batch, cp and tp"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            ClientPlaceTree.of_mesh(mesh_of((2, 2), names))
