"""A transformer as large models are built, only small: grouped-query attention, rotary positions,
RMS norm, a gated MLP. It is given its attention, and knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.functional import cross_entropy, silu

VOCABULARY = 32
WIDTH, HEADS, KV_HEADS, SIZE = 24, 4, 2, 6

Attention: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.query = nn.Linear(WIDTH, HEADS * SIZE, bias=False)
        self.key_value = nn.Linear(WIDTH, 2 * KV_HEADS * SIZE, bias=False)
        self.mixed = nn.Linear(HEADS * SIZE, WIDTH, bias=False)
        self.gate, self.up = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, positions: torch.Tensor, attend: Attention) -> torch.Tensor:
        normed = self.before(x)
        q = self.query(normed).unflatten(-1, (HEADS, SIZE))
        k, v = self.key_value(normed).unflatten(-1, (2 * KV_HEADS, SIZE)).chunk(2, -2)
        out = attend(rotated(q, positions), rotated(k, positions), v)
        x = x + self.mixed(out.flatten(-2))
        normed = self.after(x)
        return x + self.down(silu(self.gate(normed)) * self.up(normed))


class GqaModel(nn.Module):
    """The same parameters each time."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(
        self, embedded: torch.Tensor, positions: torch.Tensor, attend: Attention
    ) -> torch.Tensor:
        """Logits [tokens, VOCABULARY] of embedded tokens [tokens, WIDTH]."""
        x = embedded
        for layer in self.layers:
            x = layer(x, positions, attend)
        return self.head(x)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, size]."""
    rates = 0.3 ** torch.arange(x.shape[-1] // 2, dtype=x.dtype)
    angles = positions[:, None, None] * rates
    low, high = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def mean_loss(logits: torch.Tensor, labels: torch.Tensor, supervised: int) -> torch.Tensor:
    """Sum over the supervised tokens that are here, over the number of all there are."""
    return cross_entropy(logits, labels, ignore_index=-100, reduction="sum") / supervised
