"""A transformer layer in two parts that run separately: attention, and everything else.

Attention is the product of queries, keys and values alone, the only part of a layer that relates
one token to another; norms, projections, rotary positions and feed-forward network treat each token
by itself. `LayerParts` runs forward and backward pass of each part by itself, on the values and
gradients that the parts exchange in the whole layer. So both together are the layer: nothing is
left out, and nothing is done twice.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from evenstep.tools.profile.model_on_device import ModelShape

Tensors = tuple[torch.Tensor, ...]


class Layer(nn.Module):
    """Pre-norm, rotary positions, no biases in the projections; takes [1, length, hidden_size]."""

    def __init__(self, shape: ModelShape, *, device: str, dtype: torch.dtype) -> None:
        super().__init__()

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False, device=device, dtype=dtype)

        hidden, key_size = shape.hidden_size, shape.key_heads * shape.head_size
        self.shape = shape
        self.attention_norm = nn.LayerNorm(hidden, device=device, dtype=dtype)
        self.query_key_value = linear(hidden, hidden + 2 * key_size)
        self.attention_out = linear(hidden, hidden)
        self.ffn_norm = nn.LayerNorm(hidden, device=device, dtype=dtype)
        self.ffn_in = linear(hidden, (2 if shape.gated else 1) * shape.ffn_size)
        self.ffn_out = linear(shape.ffn_size, hidden)

    def project(self, x: torch.Tensor, rotation: torch.Tensor) -> Tensors:
        """Queries [1, heads, length, head_size], and keys and values [1, key_heads, ...]."""
        rows, length, _ = x.shape
        queries, keys = self.shape.heads, self.shape.key_heads
        mixed = self.query_key_value(self.attention_norm(x))
        mixed = mixed.view(rows, length, queries + 2 * keys, self.shape.head_size).transpose(1, 2)
        query, key, value = mixed.split([queries, keys, keys], dim=1)
        return _rotate(query, rotation), _rotate(key, rotation), value

    def attend(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """[1, heads, length, head_size]."""
        return F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=self.shape.causal,
            enable_gqa=self.shape.heads != self.shape.key_heads,
        )

    def finish(self, x: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """The layer's output, from its input and the output of attention."""
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        inner = self.ffn_in(self.ffn_norm(x))
        if self.shape.gated:
            gate, inner = inner.chunk(2, dim=-1)
            inner = F.silu(gate) * inner
        else:
            inner = F.gelu(inner)
        out: torch.Tensor = x + self.ffn_out(inner)
        return out

    def forward(self, x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
        return self.finish(x, self.attend(*self.project(x, rotation)))


class LayerParts:
    """Both parts of a layer over one document, each with forward and backward pass."""

    def __init__(self, layer: Layer, length: int, *, seed: int = 0) -> None:
        self._layer = layer
        self._parameters_used = tuple(layer.parameters())
        like = self._parameters_used[0]
        generator = torch.Generator(like.device).manual_seed(seed)
        size = (1, length, layer.shape.hidden_size)
        self.x, self.gradient = (
            torch.randn(size, generator=generator, device=like.device, dtype=like.dtype)
            for _ in range(2)
        )
        self.rotation = _rotations(length, layer.shape.head_size).to(like)
        self.x.requires_grad_()
        with torch.no_grad():
            projected = layer.project(self.x, self.rotation)
            self._attended = layer.attend(*projected)
        self._projected = tuple(tensor.requires_grad_() for tensor in projected)
        self._attended.requires_grad_()
        # Each part's backward pass needs gradients from the other part.
        self._projected_gradients = tuple(map(torch.zeros_like, self._projected))
        self._attended_gradient = self.rest()[1].detach()
        self._projected_gradients = self.attention()

    def attention(self) -> Tensors:
        """Runs attention; returns the gradients of queries, keys and values."""
        attended = self._layer.attend(*self._projected)
        return torch.autograd.grad(attended, self._projected, self._attended_gradient)

    def rest(self) -> Tensors:
        """Runs the rest; returns the gradients of input, attention's output and parameters."""
        projected = self._layer.project(self.x, self.rotation)
        out = self._layer.finish(self.x, self._attended)
        return torch.autograd.grad(
            (*projected, out),
            (self.x, self._attended, *self._parameters_used),
            (*self._projected_gradients, self.gradient),
        )


def _rotations(length: int, size: int) -> torch.Tensor:
    """[2, length, size / 2] cosines and sines."""
    frequencies = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(length), frequencies)
    return torch.stack([angles.cos(), angles.sin()])


def _rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotates each pair (i, i + size / 2) of [..., length, size]."""
    (cos, sin), (a, b) = rotation, x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)
