"""Causal transformers of two layers: one whose attention is given from outside, with documents for
it, and one of transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

VOCABULARY, HEADS, WIDTH = 13, 2, 16
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class TinyCausal(nn.Module):
    """float64, rotary positions. Tokens and positions [1, T] -> logits [1, T, VOCABULARY]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.mixes = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.feeds = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.double()

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attention
    ) -> torch.Tensor:
        x = 3 * self.embed(tokens)
        for mix, feed in zip(self.mixes, self.feeds):
            shape = (*tokens.shape, HEADS, WIDTH // HEADS)
            query, key, value = (part.view(shape).transpose(1, 2) for part in mix(x).chunk(3, -1))
            mixed = attend(rotated(query, positions), rotated(key, positions), value)
            x = x + mixed.transpose(1, 2).flatten(2)
            x = x + torch.tanh(feed(x))
        return self.head(x)


def rotated(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [1, heads, T, size]."""
    rates = 0.7 ** torch.arange(x.shape[-1] // 2, dtype=x.dtype)
    angles = positions[:, None, :, None] * rates
    even, odd = x[..., 0::2], x[..., 1::2]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)


def causal(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=True)


def by_mask(mask: torch.Tensor) -> Attention:
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=mask)


def by_pieces(starts: list[int], lengths: list[int]) -> Attention:
    """What a variable-length kernel does: every piece alone; what is in none comes out as 0."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(q)
        for start, length in zip(starts, lengths):
            piece = slice(start, start + length)
            out[:, :, piece] = causal(q[:, :, piece], k[:, :, piece], v[:, :, piece])
        return out

    return attend


def gradient(model: nn.Module) -> torch.Tensor:
    parts = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
    assert len(parts) == len(list(model.parameters()))
    model.zero_grad(set_to_none=True)
    return torch.cat(parts)


def documents(lengths: list[int], seed: int = 0) -> list[dict[str, Any]]:
    """Samples with labels aligned with their tokens: some -100, so too some first ones."""
    made = torch.Generator().manual_seed(seed)
    samples = []
    for length in lengths:
        tokens = torch.randint(VOCABULARY, (length,), generator=made)
        masked = torch.rand(length, generator=made) < 0.3
        samples.append({"input_ids": tokens, "labels": tokens.masked_fill(masked, -100)})
    return samples


def one_at_a_time(model: TinyCausal, samples: list[dict[str, Any]]) -> torch.Tensor:
    """The gradient of the loss summed over supervised tokens, of every document alone, as nothing
    else could disturb it."""
    losses = []
    for sample in samples:
        tokens, labels = sample["input_ids"], sample["labels"]
        out = model(tokens[None], torch.arange(len(tokens))[None], causal)[0]
        losses.append(cross_entropy(out[:-1], labels[1:], reduction="sum"))
    torch.stack(losses).sum().backward()
    return gradient(model)


def tiny_qwen(**changes: Any) -> Any:
    """A causal language model of transformers, as small as can be."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.Qwen2Config(**{**sizes, **heads, **changes})
    return transformers.Qwen2ForCausalLM(config)
