"""Four ranks: two data-parallel groups of two context-parallel ranks, which share micro-batches.

    torchrun --nproc-per-node 4 examples/context_parallel.py

The evenstep lines are the loader, `prepare` once per micro-batch, `attention` in every layer and
`loss * scale`. Labels come shifted, as `shift_labels`: the next token may be on another rank.
"""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.context_parallel import PreparedSharding, attention, prepare

WIDTH, HEADS, KV_HEADS, SIZE, LONGEST = 64, 4, 2, 16, 1200
PARTS = [part for page in topics.values() for part in page.split("\n\n") if part.strip()]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * SIZE)
        self.out = torch.nn.Linear(HEADS * SIZE, WIDTH)

    def forward(self, x: torch.Tensor, prepared: PreparedSharding) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (-1, SIZE)).split([HEADS, KV_HEADS, KV_HEADS], -2)
        return self.out(attention(q, k, v, prepared).flatten(-2))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, WIDTH)
        self.layer = Layer()
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, batch: dict[str, Any], prepared: PreparedSharding) -> torch.Tensor:
        x = self.embedding(batch["input_ids"])
        x = x + F.gelu(self.layer(x, prepared))
        # The mean over the supervised tokens of this rank's shard, as the scales expect.
        return F.cross_entropy(self.head(x).flatten(0, 1), batch["shift_labels"].flatten())


def main() -> None:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    torch.manual_seed(0)
    model = DistributedDataParallel(Model())  # averages over all ranks
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    documents = [{"input_ids": torch.tensor(list(part.encode()[:LONGEST]))} for part in PARTS[:900]]
    policy = evenstep.WorkloadPacking(LONGEST, micro_batches=2, context_parallel=2)
    loader = evenstep.DataLoader(documents, policy=policy, shuffle=True)
    for micro_batches, step in loader.steps():
        optimizer.zero_grad()
        for batch, scale in zip(micro_batches, step.loss_scales):
            prepared = prepare(batch["sharding"], mesh["cp"], device="cpu")
            loss = model(batch, prepared)
            (loss * scale).backward()
        optimizer.step()
        if dist.get_rank() == 0 and step.step % 10 == 0:
            print(f"step {step.step}: imbalance {step.imbalance:.2f}, loss {loss.item():.2f}")
    loader.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# step 0: imbalance 1.02, loss 5.70
# step 10: imbalance 1.00, loss 4.06
# step 20: imbalance 1.00, loss 2.99
