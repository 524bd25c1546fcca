"""Tensor-parallel peers get the same micro-batches, and only the first of them fetches any.

    torchrun --nproc-per-node 4 examples/broadcast.py

Where TP is 0, a rank is a client of the service; it sends each step on to its peers, by a broadcast
in their process group. A trainer that has a `broadcast_data`, as Megatron-LM, uses that instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pydoc_data.topics import topics
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import evenstep.service as es
from evenstep import Even

DP, TP, STEPS = 2, 2, 12
NAME = f"broadcast-{os.environ.get('MASTER_PORT', '')}"  # one name for one job of this machine


def steps_of(group: dist.ProcessGroup) -> Iterator[tuple[list[dict[str, Any]], list[float]]]:
    """Micro-batches and the factors of their losses, fetched where TP is 0, received elsewhere."""
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


def job_of() -> es.Job:
    parts = (part for page in topics.values() for part in page.split("\n\n") if part)
    samples = [{"input_ids": list(part.encode()[:2048])} for part in parts]
    return es.Job(
        sources=[es.Source("manual", samples)],
        mesh=es.Mesh(DP=DP, TP=TP),
        policy=Even(2048, packed=True),
        broadcast_at=["TP"],
        micro_batches=2,
    )


def main() -> None:
    dist.init_process_group("gloo")
    tp = init_device_mesh("cpu", (DP, TP), mesh_dim_names=("DP", "TP"))["TP"].get_group()
    starts = dist.get_rank() == 0
    with es.start(job_of(), backend="processes", name=NAME) if starts else nullcontext():
        dist.barrier()
        for number, (batches, scales) in zip(range(STEPS), steps_of(tp)):
            train(number, batches, scales)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

# step 0, rank 0: micro-batches of [2023, 2018] tokens
# step 0, rank 1: micro-batches of [2023, 2018] tokens
# ...
