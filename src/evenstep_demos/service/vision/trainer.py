"""What one rank of the vision demo does with a step: encode, exchange embeddings, train.

Pictures are encoded on the rank that the plan names, and their embeddings sent to the ranks whose
rows hold the sample. Gradients return the same way. The exchange is one all-to-all in each
direction, in which every rank takes part, with pictures or without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import evenstep.service as es
from evenstep.batch.labels import IGNORE_INDEX
from evenstep.context_parallel import attention, prepare
from evenstep.strategy.sample_table import SampleTable
from evenstep_demos.models import GPT
from evenstep_demos.service.messages import Ready, ServiceRunFinished, StepRecord, Took
from evenstep_demos.service.options import CONTEXT, DATA, RANKS, ServiceDemoOptions
from evenstep_demos.service.sizes import HIDDEN, SHAPE
from evenstep_demos.service.trainer import (
    LEARNING_RATE,
    average_gradients,
    client_of,
    mean_loss,
    own,
    received,
    settle_threads,
    warm_up,
)
from evenstep_demos.service.vision.encode import PATCH, PICTURE
from evenstep_demos.service.vision.encoder import VisionEncoder
from evenstep_demos.service.vision.routes import Routes, routes_of_group, routes_of_subplan
from evenstep_demos.service.vision.strategies import ENCODER, VOCABULARY, encoder_cost


class VisionModel(nn.Module):
    """An encoder and a backbone, which do not call each other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = VisionEncoder()
        self.backbone = GPT(VOCABULARY, **SHAPE)


@dataclass
class _Pictures:
    """Pictures that this rank encodes in a step."""

    routes: Routes
    pixels: torch.Tensor
    grids: torch.Tensor
    tables: tuple[SampleTable, ...]


def train_vision(
    send: Callable[[Any], None], options: ServiceDemoOptions, address: str, runs: Sequence[str]
) -> None:
    """All runs on one rank; see `evenstep_demos.service.trainer.train_text`."""
    settle_threads()
    rank = dist.get_rank()
    context = init_device_mesh("cpu", (DATA, CONTEXT), mesh_dim_names=("dp", "cp"))["cp"]
    _warm_up(context)
    for run in runs:
        torch.manual_seed(options.seed)
        model = VisionModel()
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        records = []
        send(Ready(run=run))
        with client_of(address, run) as client:
            for _ in range(options.step_count):
                begin = time.perf_counter()
                micro_batches, step = next(client)
                loss, processor, encoded = compute_gradients(model, micro_batches, step, context)
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
                        processor=processor,
                        loss=loss,
                        supervised=sum(step.supervised),
                        seconds=time.perf_counter() - begin,
                        encoded=tuple(own(table) for table in encoded),
                    )
                )
                mean = mean_loss(records[-1])
                if rank == 0:
                    send(Took(run=run, step=step.step, loss=mean))
        send(ServiceRunFinished(run=run, rank=rank, records=records))


def compute_gradients(
    model: VisionModel, micro_batches: Sequence[Any], step: es.ServiceStep, context: Any
) -> tuple[float, dict[str, float], tuple[SampleTable, ...]]:
    """Forward and backward passes of both modules; then the gradients of all ranks, averaged.

    Args:
        context: the device mesh of context-parallel ranks.

    Returns:
        This rank's summed loss, processor seconds by module, and the samples that it encoded.
    """
    pictures = _pictures_of(micro_batches, step)
    begin = time.thread_time()
    encoded = torch.empty((0, HIDDEN))
    if len(pictures.grids):
        encoded = model.encoder(pictures.pixels, pictures.grids)
    forward = time.thread_time() - begin

    sent, got = pictures.routes.sent_to, pictures.routes.got_from
    order = torch.from_numpy(pictures.routes.sent)
    features = _exchange(encoded.detach()[order], sent, got).requires_grad_()

    begin, loss = time.thread_time(), 0.0
    for k, (batch, scale) in enumerate(zip(micro_batches, step.loss_scales)):
        part = _backbone_loss(model.backbone, batch, features, pictures.routes.begins[k], context)
        torch.autograd.backward(part * scale)
        loss += float(part.detach())
    backbone = time.thread_time() - begin

    gradient = torch.zeros_like(features) if features.grad is None else features.grad
    returned = _exchange(gradient, got, sent)
    begin = time.thread_time()
    if len(pictures.grids):
        # An embedding that went to several ranks gets the sum of their gradients.
        torch.autograd.backward(encoded, torch.zeros_like(encoded).index_add(0, order, returned))
    backward = time.thread_time() - begin
    average_gradients(model.parameters())
    return loss, {"encoder": forward + backward, "backbone": backbone}, pictures.tables


def _warm_up(context: Any) -> None:
    model = VisionModel()
    warm_up(model.backbone, context)
    grids = torch.tensor([[1, 16, 16]])
    pixels = torch.zeros((256, PATCH), dtype=torch.uint8)
    torch.autograd.backward(model.encoder(pixels, grids).sum())


def _backbone_loss(
    backbone: GPT, batch: Any, features: torch.Tensor, begins: Any, context: Any
) -> torch.Tensor:
    """Loss summed over this rank's supervised tokens of a row."""
    plan = prepare(batch["sharding"], context, device="cpu")
    tokens, positions = batch["input_ids"][0], batch["position_ids"][0]
    places = (tokens == PICTURE).nonzero()[:, 0]
    # A picture's cells are the first tokens of its document.
    documents = batch["document_ids"][0][places].long()
    rows = torch.from_numpy(begins)[documents] + positions[places]
    logits = backbone(
        tokens, positions, lambda q, k, v: attention(q, k, v, plan), features[rows], places
    )
    labels = batch["shift_labels"][0]
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE_INDEX)


def _pictures_of(micro_batches: Sequence[Any], step: es.ServiceStep) -> _Pictures:
    mesh = es.Mesh(DP=DATA, CP=CONTEXT)
    delivery = mesh.delivery("DP")
    clients_of = [delivery.clients_of(bucket).tolist() for bucket in range(DATA)]
    if ENCODER in step.subplans:
        part = step.subplans[ENCODER]
        world = mesh.delivery("WORLD")
        encoder_of = [int(world.clients_of(bucket)[0]) for bucket in range(RANKS)]
        routes = routes_of_subplan(part, step.samples, clients_of, RANKS, encoder_of)
        made = [each for each in part.micro_batches if each is not None]
        return _Pictures(routes, *_joined(made), part.samples)
    costs = [encoder_cost(table.lengths["image"]) for table in step.samples]
    routes, mine = routes_of_group(step.samples, step.bucket, step.rank, clients_of, RANKS, costs)
    made = [
        _chosen(batch, np.flatnonzero(table.lengths["image"]), rows)
        for batch, table, rows in zip(micro_batches, step.samples, mine)
        if len(rows)
    ]
    return _Pictures(
        routes, *_joined(made), tuple(table[rows] for table, rows in zip(step.samples, mine))
    )


def _chosen(batch: Any, having: Any, rows: Any) -> dict[str, torch.Tensor]:
    """Grids and pixels of some of the samples of a micro-batch that have pictures."""
    grids = batch["image_grid_thw"]
    pixels = batch["pixel_values"].split(grids.prod(dim=1).tolist())
    numbers = np.searchsorted(having, rows).tolist()
    return {
        "image_grid_thw": grids[numbers],
        "pixel_values": torch.cat([pixels[number] for number in numbers]),
    }


def _joined(made: Sequence[Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels and grids of all."""
    if not made:
        return torch.empty((0, 0)), torch.empty((0, 3), dtype=torch.int64)
    pixels = torch.cat([each["pixel_values"] for each in made])
    return pixels, torch.cat([each["image_grid_thw"] for each in made])


def _exchange(rows: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
    """The rows that all ranks have sent to this one, in the order of ranks."""
    out = rows.new_empty((sum(got), HIDDEN))
    dist.all_to_all_single(out, rows.contiguous(), got, sent)
    return out
