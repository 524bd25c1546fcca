"""The gradient averaged over ranks equals that of one process on all samples.

Ranks are simulated in one process: each trains on its own group, multiplies its mean loss by
`loss_scale`, and the gradients are averaged, as DDP and FSDP do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from evenstep.batch import (
    Measure,
    PackCollator,
    PadCollator,
    StepTotals,
    check_supervised,
    loss_scale,
)
from evenstep.batch.check import without_padded_first

VOCABULARY, WIDTH = 23, 16
Batch = dict[str, Any]


class Model(nn.Module):
    """A causal transformer of one layer that takes padded and packed batches, in float64."""

    def __init__(self, *, shifts_labels: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shifts_labels = shifts_labels
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(64, WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.double()

    def loss(self, batch: Batch) -> torch.Tensor:
        tokens = batch["input_ids"]
        causal = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).tril()
        if "document_ids" in batch:
            document = batch["document_ids"]
            together = document[:, :, None] == document[:, None, :]
            positions = batch["position_ids"]
            real = torch.ones_like(tokens)
        else:
            real = batch["attention_mask"]
            # Padding attends to itself, or its softmax would be over nothing.
            together = (real[:, None, :] == 1) | torch.eye(tokens.shape[1], dtype=torch.bool)
            positions = (real.cumsum(1) - 1).clamp(min=0)
        x = self.tokens(tokens) + self.positions(positions)
        x = x + scaled_dot_product_attention(
            *self.mix(x).chunk(3, dim=-1), attn_mask=causal & together
        )
        labels = batch.get("labels", tokens.masked_fill(real == 0, -100))
        logits = self.head(torch.tanh(x))
        if self.shifts_labels:
            logits, labels = logits[:, :-1], labels[:, 1:]
        return cross_entropy(logits.flatten(0, 1), labels.flatten())

    def gradient(self, loss: torch.Tensor) -> torch.Tensor:
        grads = torch.autograd.grad(loss, list(self.parameters()), allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(p).flatten() if g is None else g.flatten()
                for p, g in zip(self.parameters(), grads)
            ]
        )


def make_samples(kind: str, count: int, rng: np.random.Generator) -> list[Batch]:
    samples = []
    for i in range(count):
        length = int(rng.integers(2, 24))
        tokens = torch.from_numpy(rng.integers(1, VOCABULARY, length))
        sample = {"input_ids": tokens}
        masked = torch.arange(length) < rng.integers(0, length)
        if kind == "copies":
            sample["labels"] = tokens.clone()
        elif kind == "masked prompts":
            sample["labels"] = tokens.masked_fill(masked, -100)
        elif kind == "both":
            sample["labels"] = tokens.masked_fill(masked, -100) if i % 2 else tokens.clone()
        elif kind == "shifted":
            labels = torch.cat([tokens[1:], torch.tensor([-100])])
            sample["labels"] = labels.masked_fill(masked & (torch.arange(length) > 0), -100)
        samples.append(sample)
    return samples


def relative_error(value: torch.Tensor, truth: torch.Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


def simulate(
    gradient_of: Callable[[Batch, float], torch.Tensor],
    groups: list[list[Batch]],
    collate: Callable[[list[Batch]], Batch],
    mode: str,
    labels: str,
) -> torch.Tensor:
    """Average over ranks of the gradients of scaled losses. An empty group is a filler: it trains
    on a sample of another rank at scale 0."""
    measure = Measure(labels=labels)
    columns = [measure(group, ["sample"] * len(group)) for group in groups]
    samples = np.array([len(column) for column in columns])
    tokens, supervised, *_ = np.array([column.sum(axis=0) for column in columns]).T
    totals = StepTotals(samples, tokens, tokens, supervised, *[tokens.astype(np.float64)] * 4)
    total = torch.zeros(())
    for rank, group in enumerate(groups):
        batch = without_padded_first(collate(group or groups[0][:1]), labels)
        if group:
            check_supervised(batch, int(supervised[rank]), f"rank {rank}", labels)
        total = total + gradient_of(batch, loss_scale(totals, rank, mode))
    return total / len(groups)


RIGHT, LEFT, PACKED = PadCollator(), PadCollator(side="left"), PackCollator()
CASES = [
    *((kind, c) for kind in ("copies", "masked prompts", "both") for c in (RIGHT, LEFT, PACKED)),
    *(("unlabelled", c) for c in (RIGHT, PACKED)),
    *(("shifted", c) for c in (RIGHT, LEFT, PackCollator(mask_first_label=False))),
]


@pytest.mark.parametrize(("kind", "collate"), CASES)
@pytest.mark.parametrize("sizes", [(1, 7), (5, 2, 0, 1)])
def test_averaged_gradient_equals_that_of_one_big_batch(kind, collate, sizes):
    model = Model(shifts_labels=kind != "shifted")
    samples = make_samples(kind, sum(sizes), np.random.default_rng(len(sizes)))
    truth = model.gradient(model.loss(PadCollator()(samples)))
    ends = np.cumsum(sizes)
    groups = [samples[end - size : end] for size, end in zip(sizes, ends)]

    def gradient_of(batch: Batch, scale: float) -> torch.Tensor:
        return model.gradient(model.loss(batch) * scale)

    labels = "causal" if model.shifts_labels else "every"
    assert relative_error(simulate(gradient_of, groups, collate, "token", labels), truth) < 1e-9
    assert relative_error(simulate(gradient_of, groups, collate, "none", labels), truth) > 1e-2
