"""Tensor-parallel peers get the same micro-batches, and only the first of them fetches any.

    torchrun --nproc-per-node 4 examples/broadcast.py

Two data-parallel groups of two peers each. Where TP is 0, a rank is a client of the service; it
sends each step on to its peers, by a broadcast in their process group. A trainer that has
Megatron-LM's or another `broadcast_data` uses that instead.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import evenstep.service as es
from evenstep.strategy import DGraph, LoadingPlan
from evenstep.strategy.mesh import ClientPlaceTree

DP, TP, STEPS = 2, 2, 12
NAME = f"broadcast-{os.environ.get('MASTER_PORT', '')}"  # one name for one job of this machine

Step = tuple[list[dict[str, Any]], list[float]]
"""Micro-batches, and the factor of each one's loss."""


def tokenize(row: dict[str, Any]) -> dict[str, Any]:
    """Turns a stored document into a sample, whose tokens are bytes."""
    return {"input_ids": list(row["text"].encode())}


def strategy(graph: DGraph, mesh: ClientPlaceTree, step: int) -> LoadingPlan:
    return graph.mix().distribute("DP").balance("greedy").broadcast_at("TP").plan()


def steps_of(group: dist.ProcessGroup) -> Iterator[Step]:
    """The steps of this rank, fetched where TP is 0 and received elsewhere."""
    first = dist.get_global_rank(group, 0)
    if dist.get_rank() == first:
        with es.Client(job_name=NAME) as client:
            for batches, step in client:
                dist.broadcast_object_list([batches, step.loss_scales], first, group)
                yield batches, step.loss_scales
    else:
        while True:
            received: Any = [None, None]
            dist.broadcast_object_list(received, first, group)
            yield tuple(received)


def train(number: int, batches: list[dict[str, Any]], scales: list[float]) -> None:
    tokens = [batch["input_ids"].shape[1] for batch in batches]
    print(f"step {number}, rank {dist.get_rank()}: micro-batches of {tokens} tokens")


def job_of(folder: Path) -> es.Job:
    drawn = random.Random(0)
    lines = (json.dumps({"text": "x" * drawn.randrange(1, 900)}) for _ in range(400))
    (folder / "web.jsonl").write_text("\n".join(lines) + "\n")
    return es.Job(
        sources=[es.Source("web", folder / "web.jsonl", transform=tokenize)],
        mesh=es.Mesh(DP=DP, TP=TP),
        strategy=strategy,
        micro_batches=2,
        max_tokens=2048,
    )


def main() -> None:
    dist.init_process_group("gloo")
    tp = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("DP", "TP"))["TP"].get_group()
    with ExitStack() as stack:
        if dist.get_rank() == 0:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.enter_context(es.start(job_of(folder), backend="processes", name=NAME))
        dist.barrier()
        for number, (batches, scales) in enumerate(steps_of(tp)):
            train(number, batches, scales)
            if number + 1 == STEPS:
                break
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
