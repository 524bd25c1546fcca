"""Context-parallel attention on real Gloo ranks: a model trains as it does in one process, and a
rank that dies or differs makes all others raise."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gqa_model import VOCABULARY, GqaModel, mean_loss
from ranks import Job, Rank, run
from torch.distributed.device_mesh import init_device_mesh

from evenstep.context_parallel import attention, prepare
from evenstep.errors import MismatchError, PeerError
from evenstep.plan.sharding import METHODS, Sharding, shard, shard_per_document, shard_per_sequence

RAGGED = [37, 1, 5, 90, 2, 3, 61, 14]  # 213 tokens, which neither 2 nor 4 ranks divide
CASES = {  # documents: of every length; shorter than 2C each; as few tokens as leave ranks none
    "ragged": RAGGED,
    "short": [3, 1, 2, 5, 1, 1, 4],
    "one": [101],
    "few": [1, 2],
}
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}


def random_fragments(lengths: list[int], ranks: int) -> Sharding:
    """Fragments cut at random places, on random ranks, in random order."""
    made = np.random.default_rng(7)
    tokens = sum(lengths)
    bounds = np.concatenate(([0], np.sort(made.integers(0, tokens, 15)), [tokens]))
    chunks = Sharding.of_chunks(
        np.array(lengths), bounds, made.integers(0, ranks, 16), ranks, "random"
    )
    order = np.lexsort((made.random(len(chunks.start)), np.arange(ranks).repeat(chunks.fragments)))
    parts = {name: getattr(chunks, name)[order] for name in ("document", "start", "end")}
    return Sharding(lengths=chunks.lengths, offsets=chunks.offsets, method="random", **parts)


def sharding_of(method: str, lengths: list[int], ranks: int) -> Sharding:
    if method == "random":
        return random_fragments(lengths, ranks)
    return shard(lengths, ranks, methods=(method,))


@dataclass
class Row:
    """A packed sequence."""

    lengths: list[int]

    def __post_init__(self) -> None:
        made = torch.Generator().manual_seed(3)
        tokens = sum(self.lengths)
        self.tokens = torch.randint(VOCABULARY, (tokens,), generator=made)
        self.positions = torch.cat([torch.arange(length) for length in self.lengths])
        ends = torch.tensor(self.lengths).cumsum(0) - 1
        labels = self.tokens.roll(-1)
        labels[ends] = -100  # the next token is another document's
        masked = torch.rand(tokens, generator=made) < 0.3
        masked[: tokens // 4] = True  # a prompt: some shards have no supervised token
        self.labels = labels.masked_fill(masked, -100)
        self.supervised = max(int((self.labels != -100).sum()), 1)
        self.document = torch.arange(len(self.lengths)).repeat_interleave(
            torch.tensor(self.lengths)
        )

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Of the whole sequence, written out."""
        seen = (self.document[:, None] == self.document[None, :]).tril()
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


@dataclass
class Trained:
    """A sequence's or a shard's: logits, loss, and gradients of the inputs and of all parameters,
    in their order."""

    logits: torch.Tensor
    loss: torch.Tensor
    inputs: torch.Tensor
    parameters: list[torch.Tensor]


def gradients(model: GqaModel) -> list[torch.Tensor]:
    # A rank without tokens may have none for a parameter: nothing to add.
    return [p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters()]


def in_one_process(lengths: list[int], dtype: torch.dtype) -> Trained:
    model, row = GqaModel().to(dtype), Row(lengths)
    embedded = model.embed(row.tokens)
    embedded.retain_grad()
    logits = model(embedded, row.positions, row.attend)
    loss = mean_loss(logits, row.labels, row.supervised)
    loss.backward()
    assert embedded.grad is not None
    return Trained(logits.detach(), loss.detach(), embedded.grad, gradients(model))


def on_shard(
    rank: int, sharding: Sharding, dtype: torch.dtype, group: Any = None, **options: Any
) -> Trained:
    model, row = GqaModel(**options).to(dtype), Row(sharding.lengths.tolist())
    prepared = prepare(sharding, group, device="cpu")
    own = torch.from_numpy(sharding.indices(rank))
    embedded = model.embed(row.tokens[own])
    embedded.retain_grad()
    logits = model(embedded, row.positions[own], lambda q, k, v: attention(q, k, v, prepared))
    loss = mean_loss(logits, row.labels[own], row.supervised)
    loss.backward()
    assert embedded.grad is not None
    return Trained(logits.detach(), loss.detach(), embedded.grad, gradients(model))


def check_equal(sharding: Sharding, shards: list[Trained], dtype: torch.dtype) -> None:
    expected = in_one_process(sharding.lengths.tolist(), dtype)
    restore = torch.from_numpy(sharding.restore)
    found = Trained(
        torch.cat([part.logits for part in shards])[restore],
        torch.stack([part.loss for part in shards]).sum(0),
        torch.cat([part.inputs for part in shards])[restore],
        [torch.stack(parts).sum(0) for parts in zip(*(part.parameters for part in shards))],
    )
    # A token that meets only itself has no gradient of queries and keys.
    if sharding.lengths.max() > 2:
        assert all(gradient.abs().max() > 0 for gradient in found.parameters)
    for name in ("logits", "loss", "inputs", "parameters"):
        torch.testing.assert_close(
            getattr(found, name),
            getattr(expected, name),
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype],
            msg=lambda text, name=name: f"{name} under the {sharding.method} sharding: {text}",  # type: ignore[misc]
        )


def every_sharding(world_size: int) -> Iterable[tuple[Sharding, torch.dtype]]:
    for lengths in CASES.values():
        for method in (*METHODS, "random"):
            for dtype in TOLERANCE:
                yield sharding_of(method, lengths, world_size), dtype


def train_every_sharding(rank: Rank) -> list[Trained]:
    return [on_shard(rank.rank, *case) for case in every_sharding(rank.world_size)]


@pytest.mark.parametrize("world_size", [2, 4])
def test_under_every_sharding_a_model_trains_as_in_one_process(
    tmp_path: Path, world_size: int
) -> None:
    trained = run(train_every_sharding, world_size, folder=tmp_path, within=90)
    for (sharding, dtype), *shards in zip(every_sharding(world_size), *trained):
        check_equal(sharding, shards, dtype)


def train_checkpointed(rank: Rank) -> Trained:
    sharding = shard_per_document(RAGGED, rank.world_size)
    return on_shard(rank.rank, sharding, torch.float64, checkpointed=True, layers=2)


def test_activation_checkpointing_changes_nothing(tmp_path: Path) -> None:
    shards = run(train_checkpointed, 2, folder=tmp_path)
    check_equal(shard_per_document(RAGGED, 2), shards, torch.float64)


def train_without_reduce_scatter(rank: Rank) -> Trained:
    def absent(*args: Any, **options: Any) -> None:
        raise RuntimeError("Backend slow does not support reduce_scatter")

    sharding = shard_per_document(RAGGED, rank.world_size)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("reduce_scatter_single", "reduce_scatter_tensor"):
            patch.setattr(dist, name, absent, raising=False)
        return on_shard(rank.rank, sharding, torch.float64)


def test_a_backend_without_reduce_scatter_will_do(tmp_path: Path) -> None:
    shards = run(train_without_reduce_scatter, 2, folder=tmp_path)
    check_equal(shard_per_document(RAGGED, 2), shards, torch.float64)


ROWS = [RAGGED, [11, 50, 3]]  # of the two data-parallel groups


def train_on_a_mesh(rank: Rank, how: str) -> Trained:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    group = mesh["cp"] if how == "mesh" else mesh.get_group("cp")
    with pytest.raises(ValueError, match=r"dimensions .*dp.*cp.*mesh\[\"cp\"\]"):
        prepare(shard_per_document(RAGGED, 2), mesh, device="cpu")
    sharding = shard_per_sequence(ROWS[rank.rank // 2], 2)
    return on_shard(rank.rank % 2, sharding, torch.float64, group)


@pytest.mark.parametrize("how", ["mesh", "group"])
def test_a_dimension_of_a_device_mesh_is_a_group(tmp_path: Path, how: str) -> None:
    trained = run(train_on_a_mesh, 4, how, folder=tmp_path)
    for lengths, shards in zip(ROWS, (trained[:2], trained[2:])):
        check_equal(shard_per_sequence(lengths, 2), shards, torch.float64)


def outside_of_the_group(rank: Rank) -> None:
    group = dist.new_group([0])
    sharding = shard_per_document(RAGGED, 1)
    if rank.rank == 0:
        prepare(sharding, group, device="cpu")
        return
    with pytest.raises(ValueError, match="process 1 is not in the context-parallel group"):
        prepare(sharding, group, device="cpu")


def test_a_process_outside_of_the_group_is_refused(tmp_path: Path) -> None:
    run(outside_of_the_group, 2, folder=tmp_path)


def differ(rank: Rank) -> None:
    method = shard_per_sequence if rank.rank == 1 else shard_per_document
    prepare(method(RAGGED, rank.world_size), device="cpu")


def test_plans_that_differ_raise_on_all_ranks(tmp_path: Path) -> None:
    with Job(differ, 4, folder=tmp_path) as job:
        outcomes = job.join(within=30)
    assert [outcome.error for outcome in outcomes] == [MismatchError.__name__] * 4
    assert "than ranks [0, 2, 3]: its own is per-sequence" in outcomes[1].message


def train_until_killed(rank: Rank, where: str) -> None:
    sharding = shard_per_document(RAGGED, rank.world_size)
    prepared = prepare(sharding, device="cpu")
    tokens = int(sharding.tokens[rank.rank])

    def attend(q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q, prepared)

    for step in range(1_000_000):
        out = attend(torch.randn(tokens, 2, 8, requires_grad=True))
        if rank.rank == 1 and step == 3 and where == "backward":
            os.kill(os.getpid(), signal.SIGKILL)
        out.sum().backward()
        if rank.rank == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_where_a_rank_is_killed_the_others_raise(tmp_path: Path, where: str) -> None:
    with Job(train_until_killed, 4, where, folder=tmp_path) as job:
        outcomes = job.join(within=30)
    for rank in (0, 2, 3):
        assert outcomes[rank].error == PeerError.__name__
        assert "another rank has died or left" in outcomes[rank].message
        if where == "backward":  # which the others have reached, or will
            assert "summing the gradients" in outcomes[rank].message
    assert outcomes[1].value is None
    assert not outcomes[1].error
