"""Meshes of torch, as torchtitan names their dimensions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from evenstep.errors import ConfigurationError
from evenstep.strategy.mesh import ClientPlaceTree, Place


def mesh_of(shape: tuple[int, ...], names: tuple[str, ...] | None) -> Any:
    """What of_mesh reads of a DeviceMesh, for more ranks than there are processes."""
    count = int(torch.tensor(shape).prod())
    return SimpleNamespace(mesh=torch.arange(count).reshape(shape), mesh_dim_names=names)


@pytest.mark.parametrize("rank", range(4))
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
        assert [mesh.get_local_rank("dp_replicate"), mesh.get_local_rank("tp")] == [
            here.DP,
            here.TP,
        ]
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


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((2, 4, 1, 2), ("pp", "batch", "cp", "tp")),  # the mesh for data
        ((2, 1, 4, 1, 2), ("pp", "dp_replicate", "dp_shard", "cp", "tp")),
        ((2, 2, 2, 2), ("pp", "dp_shard_mod_ep", "dp_shard_in_ep", "tp")),  # with experts
    ],
)
def test_all_meshes_of_torchtitan_that_tell_who_needs_which_data_are_alike(
    shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    tree = ClientPlaceTree.of_mesh(mesh_of(shape, names))
    assert tree == ClientPlaceTree.of({"PP": 2, "DP": 4, "CP": 1, "TP": 2})


@pytest.mark.parametrize(
    ("shape", "names", "words"),
    [
        ((2, 2), None, "the DeviceMesh has no names"),
        ((2, 2), ("dp", "ep"), "dimension 'ep' of the DeviceMesh is not one of"),
        ((2, 2), ("fsdp", "tp"), "dimension 'fsdp' .* such as pp, batch, cp and tp"),
    ],
)
def test_a_mesh_that_says_too_little_is_refused(
    shape: tuple[int, ...], names: tuple[str, ...] | None, words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ClientPlaceTree.of_mesh(mesh_of(shape, names))
