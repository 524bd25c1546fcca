"""Small transformers in plain PyTorch, which the demos train: one block, and the GPTs made of it.

A block knows nothing of rows, documents or ranks. It is given its attention as a function, so the
same block serves padded rows, and packed rows of which each rank has a shard.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention of [..., tokens, heads, size] queries, keys and values; returns the same shape."""


class Block(nn.Module):
    """Pre-norm attention and MLP, each added to its input."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden_size)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.attention_out = nn.Linear(hidden_size, hidden_size, bias=False)
        self.mlp_norm = nn.LayerNorm(hidden_size)
        self.mlp = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size, bias=False),
            nn.GELU(),
            nn.Linear(4 * hidden_size, hidden_size, bias=False),
        )

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        """[..., tokens, hidden] to the same shape."""
        mixed = self.query_key_value(self.attention_norm(x))
        query, key, value = mixed.unflatten(-1, (3, self.heads, -1)).unbind(-3)
        x = x + self.attention_out(attend(query, key, value).flatten(-2))
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class GPT(nn.Module):
    """A decoder-only language model: rotary positions, tied input and output weights."""

    def __init__(self, vocab_size: int, *, hidden_size: int, layers: int, heads: int) -> None:
        super().__init__()
        self.head_size = hidden_size // heads
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        self.blocks = nn.ModuleList(Block(hidden_size, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden_size)
        _initialize(self, layers)

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        """
        Args:
            input_ids: [..., tokens] int64.
            position_ids: [tokens] int64, within documents, wherever in a row a token lies.
            attend: causal attention within documents, called once in every block.

        Returns:
            [..., tokens, vocabulary] logits.
        """
        x = self.tokens(input_ids)
        rotation = _rotations(position_ids, self.head_size)

        def attend_rotated(
            query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            return attend(_rotate(query, rotation), _rotate(key, rotation), value)

        for block in self.blocks:
            x = block(x, attend_rotated)
        out: torch.Tensor = self.norm(x) @ self.tokens.weight.T
        return out


class PaddedGPT(nn.Module):
    """The loss of a `GPT` on rows padded on the right; about 0.9 million parameters by default.

    Under a causal mask no real token ever sees the padding behind it, so no further mask is needed.
    Padded positions are computed and thrown away, which is what padding costs.
    """

    def __init__(
        self, *, vocab_size: int, hidden_size: int = 128, layers: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.gpt = GPT(vocab_size, hidden_size=hidden_size, layers=layers, heads=heads)

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Mean cross entropy of each token given those before it.

        Args:
            input_ids: [rows, length] int64, padded on the right.
            labels: [rows, length] int64, a copy of the tokens with -100 where padded; shifted here.
            attention_mask: not needed, and taken so that a batch can be passed whole.

        Returns:
            A scalar.
        """
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        logits = self.gpt(input_ids, positions, partial(dense_attention, causal=True))
        loss: torch.Tensor = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss


def _initialize(model: nn.Module, layers: int) -> None:
    """Draws weights as GPT-2 does: residual branches smaller, so that depth does not raise the
    variance."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            branch = name.endswith(("attention_out.weight", "mlp.2.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if branch else 0.02)


def dense_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, causal: bool
) -> torch.Tensor:
    """Each token of [rows, tokens, heads, size] attends to its row, or to the part before it."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))  # [rows, heads, tokens, size]
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal).transpose(1, 2)


def _rotations(positions: torch.Tensor, size: int) -> torch.Tensor:
    """[2, tokens, 1, size / 2] cosines and sines of the angles by which each position turns."""
    steps = torch.arange(0, size, 2, device=positions.device)
    angles = (positions[:, None] * 10_000.0 ** (-steps / size))[:, None]
    return torch.stack([angles.cos(), angles.sin()])


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turns each pair (i, i + size / 2) of [..., tokens, heads, size], so that products of queries
    and keys depend on their distance."""
    (cos, sin), (a, b) = rotation, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
