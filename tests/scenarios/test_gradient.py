"""Training with DistributedDataParallel on dynamic batches follows the gradient of all samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Rank, run
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

import evenstep
from documents import VOCABULARY, Documents
from evenstep.context_parallel import attention, prepare

Batch = dict[str, Any]
WIDTH = 8


class Model(nn.Module):
    """A causal transformer of one layer in float64, which takes padded and packed batches and
    context-parallel shards, and gives the mean loss over the supervised tokens, shifting labels by
    one where that is not done already."""

    def __init__(self, peers: Any = None) -> None:
        """
        Args:
            peers: the context-parallel group.
        """
        super().__init__()
        self.peers = peers
        torch.manual_seed(0)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.double()

    def forward(self, batch: Batch) -> torch.Tensor:
        if "sharding" in batch:
            return self.of_shard(batch)
        tokens, labels = batch["input_ids"], batch["labels"]
        document = batch.get("document_ids")
        if document is None:
            # Padding is a document of its own.
            document = batch["attention_mask"]
        together = (document[:, :, None] == document[:, None, :]).tril()
        x = self.tokens(tokens)
        query, key, value = self.mix(x).chunk(3, dim=-1)
        x = x + scaled_dot_product_attention(query, key, value, attn_mask=together)
        logits = self.head(torch.tanh(x))[:, :-1]
        return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())

    def of_shard(self, batch: Batch) -> torch.Tensor:
        plan = prepare(batch["sharding"], self.peers, device="cpu")
        x = self.tokens(batch["input_ids"])
        query, key, value = self.mix(x)[:, :, None].chunk(3, dim=-1)  # one head
        x = x + attention(query, key, value, plan)[:, :, 0]
        logits = self.head(torch.tanh(x))
        return cross_entropy(logits.flatten(0, 1), batch["shift_labels"].flatten())


def gradient(module: nn.Module) -> torch.Tensor:
    gradients = [p.grad.flatten().clone() for p in module.parameters() if p.grad is not None]
    module.zero_grad(set_to_none=True)
    return torch.cat(gradients)


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


# One rank has fewer samples than the other one has steps, so that its last steps are fillers.
COUNT = 120
SHARDS = [list(range(5, COUNT)), list(range(5))]


DOCUMENTS = Documents(COUNT, longest=64, prompts=True)
POLICIES = {
    "packed": evenstep.Even(256, packed=True),
    "micro-batches": evenstep.WorkloadPacking(128, micro_batches=3),
    "padded": evenstep.Even(256),
    "shards": evenstep.WorkloadPacking(
        128, micro_batches=2, context_parallel=2, sharding="per-document"
    ),
}


def loader_of(rank: Rank, form: str, num_workers: int) -> evenstep.DataLoader:
    policy = POLICIES[form]
    return evenstep.DataLoader(
        DOCUMENTS,
        policy=policy,
        collate_fn=evenstep.PackCollator() if policy.packed else evenstep.PadCollator(),
        sampler=SHARDS[rank.rank // policy.context_parallel],
        memory=evenstep.Memory(buffer_size=16),
        num_workers=num_workers,
        multiprocessing_context="fork" if num_workers else None,
    )


def truth_of(indices: list[int]) -> torch.Tensor:
    """Gradient of all samples as one padded batch in one process, made without a loader."""
    model = Model()
    model(evenstep.PadCollator()([DOCUMENTS[i] for i in indices])).backward()
    return gradient(model)


def backward(model: Any, batch: Any, step: evenstep.StepInfo) -> None:
    if not step.loss_scales:
        (model(batch) * step.loss_scale).backward()
        return
    pairs = list(zip(batch, step.loss_scales))
    with model.no_sync():
        for micro_batch, scale in pairs[:-1]:
            (model(micro_batch) * scale).backward()
    micro_batch, scale = pairs[-1]
    (model(micro_batch) * scale).backward()


def train(rank: Rank, form: str, num_workers: int) -> Any:
    size = POLICIES[form].context_parallel
    peers = None
    for first in range(0, rank.world_size, size) if size > 1 else ():
        group = torch.distributed.new_group(range(first, first + size))
        peers = group if first <= rank.rank < first + size else peers
    model = DistributedDataParallel(Model(peers))
    steps = []
    for batch in loader_of(rank, form, num_workers):
        step = evenstep.pop_step(batch)
        backward(model, batch, step)
        steps.append((step.indices, gradient(model)))
    return steps


@pytest.mark.parametrize(
    ("form", "num_workers"),
    [("packed", 1), ("micro-batches", 0), ("padded", 0), ("shards", 0)],
)
def test_gradients_of_steps_are_those_of_one_process(
    tmp_path: Path, form: str, num_workers: int
) -> None:
    peers = POLICIES[form].context_parallel  # ranks that share each micro-batch
    of_steps = run(train, 2 * peers, form, num_workers, folder=tmp_path, within=30 * peers)
    assert len(of_steps[0]) == len(of_steps[-1]) > 3
    assert any(not indices for indices, _ in of_steps[-1])
    for same in zip(*of_steps):
        assert [indices for indices, _ in same[::peers]] == [
            indices for indices, _ in same[peers - 1 :: peers]
        ]
        truth = truth_of([i for indices, _ in same[::peers] for i in indices])
        for _, value in same:
            assert relative_error(value, truth) < 1e-5
