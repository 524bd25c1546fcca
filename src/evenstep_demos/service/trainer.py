"""What one rank does: takes steps of a running service and trains on them.

Two data-parallel groups, each of two context-parallel ranks that have a shard of each row. A rank
learns from its client alone what to train on.
"""

from __future__ import annotations

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
from evenstep_demos.ranks import ProgressLines
from evenstep_demos.service.delivery import ReceivedMicroBatch, StepRecord
from evenstep_demos.service.options import CONTEXT, DATA, ServiceDemoOptions
from evenstep_demos.service.strategies import BYTES, SHAPE

_PATIENCE = 180.0  # seconds for a service to answer, on a busy machine
_LEARNING_RATE = 3e-3

Computed = tuple[list[torch.Tensor], dict[str, float], tuple[SampleTable, ...]]
"""Of one rank in a step: losses of the tokens of each micro-batch, processor seconds by module, and
the samples whose pictures it encoded."""


def train(
    send: Callable[[str], None], options: ServiceDemoOptions, address: str, run: str
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
    model: torch.nn.Module
    compute: Callable[..., Computed] = compute_text
    torch.manual_seed(options.seed)
    if options.vision:
        from evenstep_demos.service.vision.trainer import VisionModel, compute_vision

        both = VisionModel()
        model, backbone, compute = both, both.backbone, compute_vision
    else:
        model = backbone = GPT(BYTES, **SHAPE)
    _warm_up(backbone, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE)
    progress = ProgressLines(run, options.steps, send)
    records = []
    with es.Client(address, run, rank=dist.get_rank(), patience=_PATIENCE) as client:
        for number in range(options.steps):
            begin = time.perf_counter()
            micro_batches, step = next(client)
            losses, processor, encoded = compute(model, micro_batches, step, context)
            average_gradients(model.parameters())
            optimizer.step()
            optimizer.zero_grad()
            received = [micro_batch_of(b, t) for b, t in zip(micro_batches, step.samples)]
            records.append(
                StepRecord(
                    step=step.step,
                    micro_batches=received,
                    wait=step.wait_seconds,
                    processor=processor,
                    loss=float(sum(each.sum() for each in losses)),
                    supervised=sum(step.supervised),
                    seconds=time.perf_counter() - begin,
                    encoded=tuple(own(table) for table in encoded),
                )
            )
            if options.live:
                found = _by_source(micro_batches, step.samples, losses)
                if found:
                    client.report(loss_by_source=found)
            loss = torch.tensor([records[-1].loss, float(records[-1].supervised)])
            dist.all_reduce(loss)
            if dist.get_rank() == 0:
                progress.step(number + 1, number + 1, float(loss[0] / loss[1]))
    return records


def _warm_up(model: GPT, context: Any) -> None:
    """A pass that is not timed, so that the first step does not pay for allocators and kernels."""
    plan = prepare(shard(np.array([900, 100]), CONTEXT), context, device="cpu")
    tokens = torch.zeros(plan.tokens, dtype=torch.int64)
    logits = model(tokens, tokens, lambda q, k, v: attention(q, k, v, plan))
    torch.autograd.backward(logits.sum())
    model.zero_grad()


def compute_text(
    model: GPT, micro_batches: Sequence[Any], step: es.ServiceStep, context: Any
) -> Computed:
    """Forward and backward passes."""
    begin = time.thread_time()  # backward, too, runs in the thread that calls it
    losses = []
    for batch, scale in zip(micro_batches, step.loss_scales):
        loss = token_losses(model, batch, context)
        torch.autograd.backward(loss.sum() * scale)
        losses.append(loss.detach())
    return losses, {"backbone": time.thread_time() - begin}, ()


def token_losses(model: GPT, batch: Any, context: Any, *pictures: torch.Tensor) -> torch.Tensor:
    """[tokens] loss of this rank's tokens of a row; 0 where they are not supervised."""
    plan = prepare(batch["sharding"], context, device="cpu")
    tokens, positions = batch["input_ids"][0], batch["position_ids"][0]
    logits = model(tokens, positions, lambda q, k, v: attention(q, k, v, plan), *pictures)
    labels = batch["shift_labels"][0]
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORE_INDEX)


def average_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Averages over all ranks, data-parallel and context-parallel alike, as loss scales expect."""
    for each in parameters:
        if each.grad is None:
            each.grad = torch.zeros_like(each)
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()


def own(table: SampleTable) -> SampleTable:
    """A copy. A client's tables lie in Ray's object store, which frees them when the client is
    closed."""
    return table[np.arange(len(table))]


def micro_batch_of(batch: Any, table: SampleTable) -> ReceivedMicroBatch:
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
    """Mean loss of this rank's supervised tokens of each source."""
    names = tables[0].sources
    source = np.concatenate(
        [table.source[b["document_ids"][0].numpy()] for b, table in zip(micro_batches, tables)]
    )
    counts = np.concatenate([(b["shift_labels"][0] != IGNORE_INDEX).numpy() for b in micro_batches])
    sums = np.bincount(source, torch.cat(list(losses)).numpy() * counts, minlength=len(names))
    tokens = np.bincount(source, counts, minlength=len(names))
    return {name: float(s / t) for name, s, t in zip(names, sums, tokens) if t}
