"""What one rank of the text demo does: takes steps of a running service and trains on them.

Two data-parallel groups, each of two context-parallel ranks that have a shard of each row. A rank
learns from its client alone what to train on.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
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
from evenstep.strategy.sample_table import SampleTable
from evenstep_demos.models import GPT
from evenstep_demos.service.messages import (
    Ready,
    ReceivedMicroBatch,
    ServiceRunFinished,
    StepRecord,
    Took,
)
from evenstep_demos.service.options import CONTEXT, DATA, ServiceDemoOptions
from evenstep_demos.service.sizes import BYTES, SHAPE

_PATIENCE = 180.0  # seconds for a service to start, on a busy machine
LEARNING_RATE = 3e-3


def train_text(
    send: Callable[[Any], None], options: ServiceDemoOptions, address: str, runs: Sequence[str]
) -> None:
    """All runs on one rank, inside an initialised process group.

    Args:
        send: takes messages to the parent process.
        address: address of the Ray cluster on which services start, one for each run, of its name.
    """
    settle_threads()
    rank = dist.get_rank()
    context = init_device_mesh("cpu", (DATA, CONTEXT), mesh_dim_names=("dp", "cp"))["cp"]
    warm_up(GPT(BYTES, **SHAPE), context)
    for run in runs:
        torch.manual_seed(options.seed)
        model = GPT(BYTES, **SHAPE)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        records = []
        send(Ready(run=run))
        with client_of(address, run) as client:
            for _ in range(options.step_count):
                begin = time.perf_counter()
                micro_batches, step = next(client)
                losses, processor = _compute(model, micro_batches, step, context)
                average_gradients(model.parameters())
                optimizer.step()
                optimizer.zero_grad()
                records.append(
                    StepRecord(
                        step=step.step,
                        micro_batches=[
                            received(batch, table)
                            for batch, table in zip(micro_batches, step.samples)
                        ],
                        wait=step.wait_seconds,
                        processor={"backbone": processor},
                        loss=float(sum(each.sum() for each in losses)),
                        supervised=sum(step.supervised),
                        seconds=time.perf_counter() - begin,
                    )
                )
                if options.live:
                    found = _by_source(micro_batches, step.samples, losses)
                    if found:
                        client.report(loss_by_source=found)
                mean = mean_loss(records[-1])
                if rank == 0:
                    send(Took(run=run, step=step.step, loss=mean))
        send(ServiceRunFinished(run=run, rank=rank, records=records))


def client_of(address: str, run: str) -> es.Client:
    """The client of this rank."""
    ended_by = signal.getsignal(signal.SIGTERM)
    client = es.Client(address, run, rank=dist.get_rank(), patience=_PATIENCE)
    # Ray replaces the handler by one that prints a trace; a terminated rank should just end.
    signal.signal(signal.SIGTERM, ended_by)
    return client


def settle_threads() -> None:
    """One thread a rank, as all ranks compete for the same cores. Denormal numbers, which the
    softmax of a trained model makes many of, would make the later run slower than the earlier."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def warm_up(model: GPT, context: Any) -> None:
    """A pass that is not timed, so that the first run does not pay for allocators and kernels."""
    plan = prepare(shard(np.array([900, 100]), CONTEXT), context, device="cpu")
    tokens = torch.zeros(plan.tokens, dtype=torch.int64)
    logits = model(tokens, tokens, lambda q, k, v: attention(q, k, v, plan))
    torch.autograd.backward(logits.sum())


def _compute(
    model: GPT, micro_batches: Sequence[Any], step: es.ServiceStep, context: Any
) -> tuple[list[torch.Tensor], float]:
    """Losses of each token, and the processor seconds of forward and backward passes."""
    begin = time.thread_time()  # backward, too, runs in the thread that calls it
    losses = []
    for batch, scale in zip(micro_batches, step.loss_scales):
        plan = prepare(batch["sharding"], context, device="cpu")
        logits = model(
            batch["input_ids"][0],
            batch["position_ids"][0],
            lambda q, k, v, plan=plan: attention(q, k, v, plan),
        )
        labels = batch["shift_labels"][0]
        loss = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE_INDEX)
        torch.autograd.backward(loss.sum() * scale)
        losses.append(loss.detach())
    return losses, time.thread_time() - begin


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Averages over all ranks, data-parallel and context-parallel alike, as loss scales expect."""
    owned = list(parameters)
    flat = torch.cat(
        [(torch.zeros_like(each) if each.grad is None else each.grad).reshape(-1) for each in owned]
    )
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for each, gradient in zip(owned, torch.split(flat, [each.numel() for each in owned])):
        each.grad = gradient.view_as(each)


def mean_loss(record: StepRecord) -> float:
    """Mean loss over the tokens of all ranks."""
    sums = torch.tensor([record.loss, float(record.supervised)], dtype=torch.float64)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def own(table: SampleTable) -> SampleTable:
    """A copy. A client's tables lie in Ray's object store, which frees them when the client is
    closed."""
    return table[np.arange(len(table))]


def received(batch: Any, table: SampleTable) -> ReceivedMicroBatch:
    """A micro-batch as it is reported."""
    return ReceivedMicroBatch(
        samples=own(table),
        document=batch["document_ids"][0].numpy().astype(np.int32),
        position=batch["position_ids"][0].numpy().astype(np.int32),
        token=batch["input_ids"][0].numpy().astype(np.int32),
    )


def _by_source(
    micro_batches: Sequence[Any], tables: Sequence[SampleTable], losses: Sequence[torch.Tensor]
) -> dict[str, float]:
    """Mean loss of this rank's tokens of each source."""
    sums: dict[str, list[float]] = {}
    for batch, table, loss in zip(micro_batches, tables, losses):
        counts = batch["shift_labels"][0] != IGNORE_INDEX
        source = table.source[batch["document_ids"][0].numpy()]
        for number in np.unique(source).tolist():
            mine = counts & torch.from_numpy(source == number)
            both = sums.setdefault(table.sources[number], [0.0, 0.0])
            both[0] += float(loss[mine].sum())
            both[1] += float(mine.sum())
    return {name: total / tokens for name, (total, tokens) in sums.items() if tokens}
