"""Plans in PyTorch's context parallelism, on real ranks; and what its own balancer does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import Rank, run
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from evenstep.batch import PackCollator, attention_mask, block_mask
from evenstep.context_parallel.frameworks import LoadBalancer
from evenstep.plan.sharding import shard_per_document, shard_per_sequence
from page_code import run_page

theirs = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel")
balancers = pytest.importorskip(f"{theirs.__name__}._load_balancer")

LENGTHS = [7, 1, 12, 3, 1, 25, 2, 5]  # 56 tokens, shorter than 2C and divisible by nothing too


MAKE = {"per-document": shard_per_document, "per-sequence": shard_per_sequence}


def cut(job: Rank, method: str) -> dict[str, Any]:
    """What this rank gets of buffers of several shapes, and what comes back of them."""
    total = sum(LENGTHS)
    names = run_page(
        "context-parallelism.md",
        "PyTorch",
        sharding=MAKE[method](LENGTHS, job.world_size),
        mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (job.world_size,)),
        buffers=[
            torch.arange(2 * total).view(2, total),
            torch.arange(3 * total * 2.0).view(1, 3, total, 2),
        ],
        seq_dims=[1, 2],
        context_parallel_shard=theirs._context_parallel_shard,
        context_parallel_unshard=theirs.context_parallel_unshard,
    )
    (flat,) = theirs._context_parallel_shard(
        names["mesh"], [torch.arange(total)], [0], names["balancer"]
    )
    return {name: names[name] for name in ("buffers", "shards", "restored")} | {"flat": flat}


@pytest.mark.parametrize("method", ["per-document", "per-sequence"])
def test_each_rank_gets_its_tokens_and_gives_them_back(method, tmp_path):
    found = run(cut, 2, method, folder=tmp_path, within=60.0)
    sharding = MAKE[method](LENGTHS, 2)
    for rank, job in enumerate(found):
        own = torch.from_numpy(sharding.indices(rank))
        assert torch.equal(job["flat"], own)
        for dim, (buffer, shard) in enumerate(zip(job["buffers"], job["shards"], strict=True), 1):
            assert torch.equal(shard, buffer.index_select(dim, own))
        for buffer, restored in zip(job["buffers"], job["restored"], strict=True):
            assert torch.equal(restored, buffer)


def attend(job: Rank, lengths: list[int]) -> float:
    """The largest error of FlexAttention over shards, with PyTorch's cut of a whole row's mask."""
    torch.compiler.set_stance("force_eager")  # it compiles masks, for half a minute
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (job.world_size,))
    batch = PackCollator()([{"input_ids": [1] * length} for length in lengths])
    torch.manual_seed(0)
    qkv = list(torch.randn(3, 1, 2, sum(lengths), 8))
    truth = scaled_dot_product_attention(*qkv, attn_mask=attention_mask(batch))
    balancer = LoadBalancer(shard_per_document(lengths, job.world_size))
    buffers = [*qkv, block_mask(batch)]
    q, k, v, mask = theirs._context_parallel_shard(mesh, buffers, [2] * 4, balancer)
    gathered = []
    for part in (k, v):
        parts = [torch.empty_like(part) for _ in range(job.world_size)]
        torch.distributed.all_gather(parts, part.contiguous())
        gathered.append(torch.cat(parts, 2))
    output = flex_attention(q, *gathered, block_mask=mask)
    (output,) = theirs.context_parallel_unshard(mesh, [output], [2], balancer)
    return float((output - truth).abs().max())


def test_its_flex_attention_keeps_documents_apart_under_our_plan(tmp_path):
    errors = run(attend, 2, [100, 3, 77, 1, 75], folder=tmp_path, within=120.0)
    assert max(errors) < 1e-5


def test_it_counts_as_one_of_theirs_once_registered():
    balancer = LoadBalancer(shard_per_document([8], 2))
    assert set(balancers._LoadBalancer.__abstractmethods__) <= set(dir(balancer))
    balancers._LoadBalancer.register(LoadBalancer)
    assert isinstance(balancer, balancers._LoadBalancer)
