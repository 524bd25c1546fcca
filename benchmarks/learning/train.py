"""One training run of a small GPT on the CPU, given the samples of every step.

The gradient of a step is that of the mean over the predicted tokens of all ranks, which is what
data-parallel ranks average under `StepInfo.loss_scale`. It depends on which samples are in the
step, not on how they lie on the ranks; so one process adds it up in whatever parts compute fastest,
and a run takes equally long for every policy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.lib.corpus import Tokens
from evenstep.arrays import Int64Array
from evenstep_demos.models import GPT, dense_attention

_TOKENS_AT_A_TIME = 2048  # logits of more do not stay in the cache of a core
_GRADIENT_NORM, _BETAS, _WEIGHT_DECAY = 1.0, (0.9, 0.95), 0.1
_IGNORED = -100


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Model and schedule, the same for all policies."""

    vocab_size: int
    hidden_size: int = 64
    layers: int = 1
    heads: int = 2
    learning_rate: float = 4e-3
    warm_up: float = 0.1
    """Share of the updates in which the learning rate rises. It then falls to nearly 0 along a
    cosine, so that the loss does not hang on what the very last steps hold."""

    def model(self, seed: int) -> GPT:
        """The model before training."""
        torch.manual_seed(seed)
        return GPT(
            self.vocab_size,
            hidden_size=self.hidden_size,
            layers=self.layers,
            heads=self.heads,
        )

    def rate(self, update: int, updates: int) -> float:
        """The learning rate of an update, counted from 0."""
        done = (update + 1) / (updates + 1)
        if done <= self.warm_up:
            return self.learning_rate * done / self.warm_up
        left = (1 - done) / (1 - self.warm_up)
        return self.learning_rate * (1 - math.cos(math.pi * left)) / 2


def one_thread() -> None:
    """Settings of a process that trains: equal sums everywhere, and no denormal numbers, which
    would make a trained model slower than a new one."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def train(
    recipe: Recipe,
    model: GPT,
    samples: Tokens,
    steps: Sequence[Int64Array],
    *,
    updates: int | None = None,
) -> None:
    """Trains on the first `updates` of `steps`, all by default.

    Args:
        steps: of each update, [n] indices in `samples`.
    """
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=0.0, betas=_BETAS, weight_decay=_WEIGHT_DECAY
    )
    for number, step in enumerate(steps[:updates]):
        optimizer.zero_grad()
        accumulate_gradient(model, samples, step)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _GRADIENT_NORM)
        for group in optimizer.param_groups:
            group["lr"] = recipe.rate(number, len(steps))
        optimizer.step()


def accumulate_gradient(model: GPT, samples: Tokens, members: Int64Array) -> None:
    """Adds the gradient of the mean loss over the predicted tokens of `members`."""
    predicted = int((samples.lengths[members] - 1).sum())
    for part in _parts(samples, members):
        (_loss_sum(model, *part) / predicted).backward()


@torch.no_grad()
def mean_loss(model: GPT, samples: Tokens, members: Int64Array) -> float:
    """Mean loss over the predicted tokens of `members`."""
    total = sum(float(_loss_sum(model, *part)) for part in _parts(samples, members))
    return total / int((samples.lengths[members] - 1).sum())


def gradient(model: GPT, samples: Tokens, members: Int64Array) -> torch.Tensor:
    """[parameters] the gradient that `accumulate_gradient` adds, as one vector."""
    model.zero_grad()
    accumulate_gradient(model, samples, members)
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    return torch.cat(parts)


def _loss_sum(model: GPT, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Summed loss of [rows, length - 1] labels, each the token after those that predict it."""
    attend = partial(dense_attention, causal=True)  # no token sees the padding behind it
    logits = model(ids, torch.arange(ids.shape[1]), attend)
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def _parts(samples: Tokens, members: Int64Array) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Padded [rows, length - 1] ids, and the labels that follow them; samples of like length
    together."""
    ordered = members[np.argsort(-samples.lengths[members], kind="stable")]
    begin = 0
    while begin < len(ordered):
        longest = int(samples.lengths[ordered[begin]])
        chosen = ordered[begin : begin + max(1, _TOKENS_AT_A_TIME // longest)]
        ids = torch.zeros((len(chosen), longest), dtype=torch.int64)
        labels = torch.full_like(ids, _IGNORED)
        for row, index in enumerate(chosen.tolist()):
            tokens = samples[index]["input_ids"]
            ids[row, : len(tokens)] = labels[row, : len(tokens)] = tokens
        yield ids[:, :-1], labels[:, 1:]
        begin += len(chosen)
