"""A small GPT in plain PyTorch: pre-norm blocks, rotary positions, tied input and output weights.

Batches are padded on the right, so under a causal mask no real token ever sees padding and no
further mask is needed; padded positions are computed and thrown away, which is what they cost.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

__all__ = ["GPT"]


def _rotations(max_length: int, size: int) -> torch.Tensor:
    """[2, max_length, size / 2] cosines and sines of the angles by which each position turns."""
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(max_length), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turns each pair (i, i + size / 2) of [..., length, size], so that products of queries and
    keys depend on their distance."""
    (cos, sin), (a, b) = rotation, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class _Block(nn.Module):
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

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        mixed = self.query_key_value(self.attention_norm(x))
        query, key, value = mixed.view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(rows, length, width))
        out: torch.Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class GPT(nn.Module):
    """A decoder-only language model; about 0.9 million parameters as the demo uses it."""

    def __init__(
        self,
        *,
        vocab_size: int,
        max_length: int,
        layers: int = 2,
        hidden_size: int = 128,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, hidden_size)
        # No buffer: DDP would send it around in every step, and the demo stays on the CPU.
        self.rotations = _rotations(max_length, hidden_size // heads)
        self.blocks = nn.ModuleList(_Block(hidden_size, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden_size)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention_out.weight", "mlp.2.weight")):
                # Residual branches start small, so that depth does not raise the variance.
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5)

    def forward(
        self, input_ids: torch.Tensor, labels: torch.Tensor, reduction: str = "mean"
    ) -> torch.Tensor:
        """Cross entropy of each token given those before it.

        Args:
            input_ids: [rows, length] int64, padded on the right.
            labels: [rows, length] int64, a copy of the tokens with -100 where padded; shifted here.
            reduction: "mean" over the predicted tokens, or their "sum".

        Returns:
            A scalar.
        """
        x = self.tokens(input_ids)
        rotation = self.rotations[:, : input_ids.shape[1]]
        for block in self.blocks:
            x = block(x, rotation)
        logits = self.norm(x) @ self.tokens.weight.T
        loss: torch.Tensor = F.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction=reduction
        )
        return loss
