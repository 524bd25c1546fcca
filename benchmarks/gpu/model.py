"""A decoder as people train it (RMS norms, gated feed-forward), and batches of random tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from evenstep.context_parallel.kernels import flash_function

_LOGITS = 16_384
"""Tokens whose logits are in memory together."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """With the names of transformers, by which `evenstep.cost_of` knows the model."""

    num_hidden_layers: int = 8
    hidden_size: int = 2048
    num_attention_heads: int = 16
    intermediate_size: int = 5632
    vocab_size: int = 32_000
    rms_norm_eps: float = 1e-6


TINY = Config(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=2,
    intermediate_size=64,
    vocab_size=64,
)


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Padded: [rows, longest] tokens. Packed: [tokens], and where documents begin."""

    tokens: torch.Tensor
    labels: torch.Tensor
    """Of the token that each predicts; -100 for padding."""
    bounds: torch.Tensor | None = None
    """[documents + 1] int32."""
    longest: int = 0

    @classmethod
    def random(
        cls, lengths: Sequence[int], vocabulary: int, device: torch.device, *, packed: bool
    ) -> Batch:
        sizes = torch.tensor(lengths)
        longest = int(sizes.max())
        if packed:
            tokens = torch.randint(vocabulary, (int(sizes.sum()),), device=device)
            bounds = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(device, torch.int32)
            return cls(tokens=tokens, labels=tokens, bounds=bounds, longest=longest)
        tokens = torch.randint(vocabulary, (len(lengths), longest), device=device)
        padding = torch.arange(longest) >= sizes[:, None]
        return cls(tokens=tokens, labels=tokens.masked_fill(padding.to(device), -100))


class Layer(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.before_attention = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.before_network = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.mix = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.widen = nn.Linear(hidden, 2 * inner, bias=False)
        self.narrow = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        parts = self.mix(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        x = x + self.out(attended(*parts, batch).flatten(-2))
        gate, inner = self.widen(self.before_network(x)).chunk(2, dim=-1)
        result: torch.Tensor = x + self.narrow(F.silu(gate) * inner)
        return result


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, batch: Batch) -> torch.Tensor:
    """Like `q`, [..., tokens, heads, size]: causal, within a row or document. Padding stands behind
    real tokens, so none needs a mask."""
    if batch.bounds is None:
        return causal(q, k, v)
    flash = flash_function() if q.is_cuda else None
    if flash is not None:
        bounds = (batch.bounds, batch.bounds, batch.longest, batch.longest)
        return flash(q, k, v, *bounds, scale=q.shape[-1] ** -0.5)
    sizes = batch.bounds.diff().tolist()
    return torch.cat([causal(*each) for each in zip(*(x.split(sizes) for x in (q, k, v)))])


def causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    by_head = (x.transpose(-3, -2) for x in (q, k, v))
    return F.scaled_dot_product_attention(*by_head, is_causal=True).transpose(-3, -2)


class Decoder(nn.Module):
    """Gives the sum of the losses of a batch."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, batch: Batch) -> torch.Tensor:
        x = self.embed(batch.tokens)
        for layer in self.layers:
            x = layer(x, batch)
        states = self.norm(x).flatten(0, -2).split(_LOGITS)
        parts = zip(states, batch.labels.flatten().split(_LOGITS))
        losses = [checkpoint(self._loss, *part, use_reentrant=False) for part in parts]
        return torch.stack(losses).sum()

    def _loss(self, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(states).float(), labels, reduction="sum")


def decoder(config: Config, device: torch.device) -> Decoder:
    """In bf16 on a GPU."""
    torch.manual_seed(0)
    return Decoder(config).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def train_on(model: Decoder, batch: Batch) -> None:
    """Forward and backward."""
    model(batch).backward()
    model.zero_grad(set_to_none=True)
