"""Context-parallel attention on real Gloo ranks: groups and collectives; and a rank that dies or
differs makes all others raise. `test_context_parallelism_page` trains on it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import Job, Rank, run_all
from torch.distributed.device_mesh import init_device_mesh

from evenstep.context_parallel import attention, prepare
from evenstep.context_parallel.collectives import GroupCollectives
from evenstep.errors import MismatchError, PeerError
from evenstep.plan.sharding import shard_per_document, shard_per_sequence

LENGTHS = [37, 1, 5, 90, 2, 3, 61, 14]  # 213 tokens, which neither 2 nor 4 ranks divide


def reduce_scatter(rank: Rank) -> list[float]:
    rows = torch.arange(8.0)[:, None] * (1 + rank.rank)
    return GroupCollectives(None).reduce_scatter(rows)[:, 0].tolist()


def gather_on_a_mesh(rank: Rank) -> tuple[int, list[int]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    sharding = shard_per_sequence(LENGTHS, 2)
    with pytest.raises(ValueError, match=r"dimensions .*dp.*cp.*mesh\[\"cp\"\]"):
        prepare(sharding, mesh, device="cpu")
    group = mesh["cp"] if rank.rank < 2 else mesh.get_group("cp")
    prepared = prepare(sharding, group, device="cpu")
    return prepared.rank, prepared.collectives.all_gather(torch.tensor([rank.rank])).tolist()


def outside_of_the_group(rank: Rank) -> str:
    group = dist.new_group([0])
    try:
        prepare(shard_per_document(LENGTHS, 1), group, device="cpu")
    except ValueError as error:
        return str(error)
    return ""


def differ(rank: Rank) -> str:
    method = shard_per_sequence if rank.rank == 1 else shard_per_document
    with pytest.raises(MismatchError) as caught:
        prepare(method(LENGTHS, rank.world_size), device="cpu")
    return str(caught.value)


def test_groups_and_collectives(tmp_path: Path) -> None:
    summed, gathered, outside, differing = run_all(
        reduce_scatter,
        gather_on_a_mesh,
        outside_of_the_group,
        differ,
        world_size=4,
        folder=tmp_path,
    )
    assert summed == [[0.0, 10.0], [20.0, 30.0], [40.0, 50.0], [60.0, 70.0]]
    assert gathered == [(0, [0, 1]), (1, [0, 1]), (0, [2, 3]), (1, [2, 3])]
    assert outside[0] == ""
    for number, said in enumerate(outside[1:], 1):
        assert f"process {number} is not in the context-parallel group" in said
    assert "than ranks [0, 2, 3]: its own is per-sequence" in differing[1]


def train_until_killed(rank: Rank, where: str) -> None:
    sharding = shard_per_document(LENGTHS, rank.world_size)
    prepared = prepare(sharding, device="cpu")
    tokens = int(sharding.tokens[rank.rank])
    for step in range(1_000_000):
        q = torch.randn(tokens, 2, 8, requires_grad=True)
        out = attention(q, q, q, prepared)
        if rank.rank == 1 and step == 3 and where == "backward":
            os.kill(os.getpid(), signal.SIGKILL)
        out.sum().backward()
        if rank.rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_where_a_rank_is_killed_the_others_raise(tmp_path: Path, where: str) -> None:
    with Job(train_until_killed, 3, where, folder=tmp_path) as job:
        outcomes = job.join(within=30)
    for rank in (0, 2):
        assert outcomes[rank].error == PeerError.__name__
        assert "another rank has died or left" in outcomes[rank].message
        if where == "backward":  # which the others have reached, or will
            assert "summing the gradients" in outcomes[rank].message
    assert outcomes[1].value is None
    assert not outcomes[1].error
