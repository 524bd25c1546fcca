"""A small GPT over packed rows, of which each rank may have a shard.

It knows nothing of ranks: attention is a function that it is given, and positions are those within
documents, wherever in the row a token lies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from evenstep_demos.service.sizes import HEADS, HIDDEN, LAYERS

__all__ = ["GPT", "Attend", "small_start"]

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Causal attention within documents, of [tokens, heads, size] queries, keys and values."""


class GPT(nn.Module):
    """Pre-norm blocks, rotary positions, tied input and output weights."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, HIDDEN)
        self.blocks = nn.ModuleList(_Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        small_start(self, LAYERS)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attend: Attend,
        features: torch.Tensor | None = None,
        places: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        Args:
            input_ids, position_ids: [tokens] int64.
            attend: called once in every block.
            features: [n, hidden] what stands in for the embeddings of some tokens.
            places: [n] int64, of which tokens.

        Returns:
            [tokens, vocabulary] logits.
        """
        x = self.tokens(input_ids)
        if features is not None and places is not None:
            x = x.index_copy(0, places, features)
        rotation = _rotations(position_ids, HIDDEN // HEADS)
        for block in self.blocks:
            x = block(x, rotation, attend)
        out: torch.Tensor = self.norm(x) @ self.tokens.weight.T
        return out


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(HIDDEN)
        self.query_key_value = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)
        self.attention_out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.mlp_norm = nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(
            nn.Linear(HIDDEN, 4 * HIDDEN, bias=False),
            nn.GELU(),
            nn.Linear(4 * HIDDEN, HIDDEN, bias=False),
        )

    def forward(self, x: torch.Tensor, rotation: torch.Tensor, attend: Attend) -> torch.Tensor:
        mixed = self.query_key_value(self.attention_norm(x)).view(len(x), 3, HEADS, -1)
        query, key, value = mixed.unbind(1)
        attended = attend(_rotate(query, rotation), _rotate(key, rotation), value)
        x = x + self.attention_out(attended.reshape(len(x), HIDDEN))
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


def _rotations(positions: torch.Tensor, size: int) -> torch.Tensor:
    """[2, tokens, 1, size / 2] cosines and sines of the angles by which each position turns."""
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angles = (positions[:, None] * frequencies)[:, None]
    return torch.stack([angles.cos(), angles.sin()])


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turns each pair (i, i + size / 2) of [tokens, heads, size]."""
    (cos, sin), (a, b) = rotation, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def small_start(model: nn.Module, layers: int) -> None:
    """Weights as GPT-2 begins with, residual branches smaller, so that depth does not raise the
    variance."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            branch = name.endswith(("attention_out.weight", "mlp.2.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if branch else 0.02)
