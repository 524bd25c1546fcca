"""What one rank of the vision demo does with a step: encode, exchange embeddings, train.

Pictures are encoded on the rank that the plan names, and their embeddings sent to the ranks whose
rows hold the sample. Gradients return the same way. The exchange is one all-to-all in each
direction, in which every rank takes part, with pictures or without.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import evenstep.service as es
from evenstep_demos.models import GPT
from evenstep_demos.service.strategies import HIDDEN, SHAPE
from evenstep_demos.service.trainer import Computed, token_losses
from evenstep_demos.service.vision.encoder import VisionEncoder
from evenstep_demos.service.vision.routes import routes_of
from evenstep_demos.service.vision.strategies import PICTURE, VOCABULARY


class VisionModel(nn.Module):
    """An encoder and a backbone, which do not call each other."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = VisionEncoder()
        self.backbone = GPT(VOCABULARY, **SHAPE)


def compute_vision(
    model: VisionModel, micro_batches: Sequence[Any], step: es.ServiceStep, context: Any
) -> Computed:
    """Forward and backward passes of both modules.

    Args:
        context: the device mesh of context-parallel ranks.
    """
    part = step.subplans["encoder"]
    routes = routes_of(part, step.samples)
    pictures = [each for each in part.micro_batches if each is not None]
    begin = time.thread_time()
    encoded = torch.empty((0, HIDDEN))
    if pictures:
        encoded = model.encoder(
            torch.cat([each["pixel_values"] for each in pictures]),
            torch.cat([each["image_grid_thw"] for each in pictures]),
        )
    forward = time.thread_time() - begin

    order = torch.from_numpy(routes.sent)
    features = _exchange(encoded.detach()[order], routes.sent_to, routes.got_from).requires_grad_()

    begin, losses = time.thread_time(), []
    for batch, scale, begins in zip(micro_batches, step.loss_scales, routes.begins):
        cells = (batch["input_ids"][0] == PICTURE).nonzero()[:, 0]
        # A picture's cells are the first tokens of its document.
        first = torch.from_numpy(begins)[batch["document_ids"][0][cells].long()]
        rows = first + batch["position_ids"][0][cells]
        loss = token_losses(model.backbone, batch, context, features[rows], cells)
        torch.autograd.backward(loss.sum() * scale)
        losses.append(loss.detach())
    backbone = time.thread_time() - begin

    gradient = torch.zeros_like(features) if features.grad is None else features.grad
    returned = _exchange(gradient, routes.got_from, routes.sent_to)
    begin = time.thread_time()
    if pictures:
        # An embedding that went to several ranks gets the sum of their gradients.
        torch.autograd.backward(encoded, torch.zeros_like(encoded).index_add(0, order, returned))
    backward = time.thread_time() - begin
    return losses, {"encoder": forward + backward, "backbone": backbone}, tuple(part.samples)


def _exchange(rows: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
    """The rows that all ranks have sent to this one, in the order of ranks."""
    out = rows.new_empty((sum(got), HIDDEN))
    dist.all_to_all_single(out, rows.contiguous(), got, sent)
    return out
