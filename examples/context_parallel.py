"""Four ranks: two data-parallel groups of two context-parallel ranks, which share micro-batches.

    torchrun --nproc-per-node 4 examples/context_parallel.py

The evenstep lines are the loader, `prepare` once per micro-batch, `attention` in every layer and
`loss * scale`. Labels come shifted, as `shift_labels`: the next token may be on another rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.context_parallel import PreparedSharding, attention, prepare

VOCABULARY, WIDTH, HEADS, KV_HEADS = 256, 64, 4, 2


class Documents(torch.utils.data.Dataset):
    """Sequences of very uneven length."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        drawn = torch.empty(count).log_normal_(4.5, 1.0, generator=generator).long() + 2
        self.lengths = drawn.clamp(max=1200)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        start = index % 7
        return {"input_ids": torch.arange(start, start + int(self.lengths[index])) % VOCABULARY}


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        self.q = torch.nn.Linear(WIDTH, HEADS * size)
        self.k = torch.nn.Linear(WIDTH, KV_HEADS * size)
        self.v = torch.nn.Linear(WIDTH, KV_HEADS * size)
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.mlp = torch.nn.Sequential(
            torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU()
        )
        self.down = torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, prepared: PreparedSharding) -> torch.Tensor:
        size = WIDTH // HEADS
        q, k, v = (part(x).unflatten(-1, (-1, size)) for part in (self.q, self.k, self.v))
        x = x + self.out(attention(q, k, v, prepared).flatten(-2))
        return x + self.down(self.mlp(x))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.positions = torch.nn.Embedding(1200, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.head = torch.nn.Linear(WIDTH, VOCABULARY)

    def forward(self, batch: dict[str, Any], prepared: PreparedSharding) -> torch.Tensor:
        x = self.embedding(batch["input_ids"]) + self.positions(batch["position_ids"])
        for layer in self.layers:
            x = layer(x, prepared)
        # The mean over the supervised tokens of this rank's shard, as the scales expect.
        return F.cross_entropy(self.head(x).flatten(0, 1), batch["shift_labels"].flatten())


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "cp"))
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())  # averages over all ranks
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    policy = evenstep.WorkloadPacking(1200, micro_batches=2, context_parallel=2)
    loader = evenstep.DataLoader(
        Documents(600), policy=policy, shuffle=True, seed=0, memory=evenstep.Memory(buffer_size=128)
    )
    for micro_batches, step in loader.steps():
        optimizer.zero_grad()
        losses = torch.zeros(())
        for batch, scale in zip(micro_batches, step.loss_scales):
            prepared = prepare(batch["sharding"], mesh["cp"], device="cpu")
            loss = model(batch, prepared) * scale
            loss.backward()
            losses += loss.detach()
        optimizer.step()
        dist.all_reduce(losses)
        if dist.get_rank() == 0 and step.step % 5 == 0:
            methods = ", ".join(batch["sharding"].method for batch in micro_batches)
            print(
                f"step {step.step:3d}: {step.global_samples:3d} samples, {step.global_tokens:5d} "
                f"tokens, imbalance {step.imbalance:.2f}, {methods}, "
                f"loss {losses.item() / dist.get_world_size():.3f}"
            )
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
