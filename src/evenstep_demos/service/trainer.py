"""What one rank does: takes steps of a running service and trains on them.

Two data-parallel groups, each of two context-parallel ranks that have a shard of each row. A rank
learns from its client alone what to train on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh

import evenstep.service as es
from evenstep.batch.labels import IGNORE_INDEX
from evenstep.context_parallel import attention, prepare
from evenstep.plan.sharding import shard
from evenstep_demos.models import GPT
from evenstep_demos.ranks import ProgressLines
from evenstep_demos.service.delivery import Received, StepRecord
from evenstep_demos.service.strategies import BYTES, CONTEXT, DATA, SHAPE

_PATIENCE = 180.0  # seconds for a service to answer, on a busy machine
_LEARNING_RATE = 3e-3


def train(
    send: Callable[[str], None], address: str, run: str, steps: int, seed: int
) -> list[StepRecord]:
    """A run on one rank, inside an initialised process group.

    Args:
        send: takes lines for the user.
        address: address of the Ray cluster on which the service called `run` has started.
    """
    # One thread a rank, as all ranks compete for the same cores. Denormal numbers, of which the
    # softmax of a trained model makes many, would make the later run slower than the earlier.
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    context = init_device_mesh("cpu", (DATA, CONTEXT), mesh_dim_names=("dp", "cp"))["cp"]
    torch.manual_seed(seed)
    model = GPT(BYTES, **SHAPE)
    _warm_up(model, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    progress = ProgressLines(run, steps, send)
    records = []
    with es.Client(address, run, rank=dist.get_rank(), patience=_PATIENCE) as client:
        for number in range(steps):
            micro_batches, step = next(client)
            begin = time.thread_time()  # backward, too, runs in the thread that calls it
            total = 0.0
            for batch, scale in zip(micro_batches, step.loss_scales):
                loss = _summed_loss(model, batch, context)
                torch.autograd.backward(loss * scale)
                total += float(loss.detach())
            processor = time.thread_time() - begin
            average_gradients(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            record = StepRecord(
                micro_batches=[received(batch) for batch in micro_batches],
                wait=step.wait_seconds,
                processor=processor,
                loss=total,
                supervised=sum(step.supervised),
            )
            records.append(record)
            both = torch.tensor([record.loss, float(record.supervised)])
            dist.all_reduce(both)
            if dist.get_rank() == 0:
                progress.step(number + 1, number + 1, float(both[0] / both[1]))
    return records


def _warm_up(model: GPT, context: Any) -> None:
    """A pass that is not timed, so that the first step does not pay for allocators and kernels."""
    plan = prepare(shard(np.array([900, 100]), CONTEXT), context, device="cpu")
    tokens = torch.zeros(plan.tokens, dtype=torch.int64)
    logits = model(tokens, tokens, lambda q, k, v: attention(q, k, v, plan))
    torch.autograd.backward(logits.sum())
    model.zero_grad()


def _summed_loss(model: GPT, batch: Any, context: Any) -> torch.Tensor:
    """Loss of this rank's supervised tokens of a row."""
    plan = prepare(batch["sharding"], context, device="cpu")
    tokens, positions = batch["input_ids"][0], batch["position_ids"][0]
    logits = model(tokens, positions, lambda q, k, v: attention(q, k, v, plan))
    labels = batch["shift_labels"][0]
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE_INDEX)


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Averages over all ranks, data-parallel and context-parallel alike, as loss scales expect."""
    for each in parameters:
        if each.grad is None:
            each.grad = torch.zeros_like(each)
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()


def received(batch: Any) -> Received:
    """A micro-batch as it is reported."""
    columns = [batch[name][0] for name in ("document_ids", "position_ids", "input_ids")]
    found: Received = torch.stack(columns, dim=1).numpy().astype(np.int32)
    return found
