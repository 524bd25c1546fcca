"""Costs of groups: tokens, operations of a transformer, or measured seconds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.cost.shapes import GroupShapes
from evenstep.errors import ConfigurationError


class Cost(Protocol):
    """Predicted cost of groups, in any unit: only ratios matter."""

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        """[groups] float64, positive for every non-empty group."""
        ...


@dataclass(frozen=True, kw_only=True)
class TokenCost:
    """Real tokens, padding not counted."""

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        return shapes.tokens.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class PaddedTokenCost:
    """Tokens as computed: samples x longest when padded, real tokens when packed."""

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        return (shapes.tokens if packed else shapes.padded).astype(np.float64)


def _polynomial(
    shapes: GroupShapes, packed: bool, per_group: float, per_token: float, per_pair: float
) -> Float64Array:
    tokens = shapes.tokens if packed else shapes.padded
    pairs = shapes.squares if packed else shapes.padded * shapes.longest
    return per_group + per_token * tokens + per_pair * pairs.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class TransformerCost:
    """Floating-point operations of one forward and backward pass of a transformer.

    Per token and layer, the matrix products cost ``2 * parameters`` forward: queries and output
    ``2 h²``, keys and values ``2 h² * kv_heads / heads``, and the feed-forward network
    ``(3 if gated else 2) * h * ffn_size``. Attention scores and their product with the values cost
    ``4 h`` per pair of tokens, half of that when causal. Backward costs twice the forward pass.

    With experts (mixture of experts), a token computes `top_k` of them and the router, ``h *
    experts``. That is the cost when experts are evenly chosen.
    """

    layers: int
    hidden_size: int
    heads: int
    ffn_size: int
    kv_heads: int | None = None
    """Fewer than `heads` for grouped-query attention; equal to it by default."""
    vocab_size: int = 0
    """Counts the output projection; 0 leaves it out."""
    causal: bool = True
    gated: bool = True
    """Three feed-forward matrices (SwiGLU and its kin) instead of two."""
    experts: int = 0
    """Feed-forward networks that a layer's router chooses from, each of `ffn_size`; 0 for a dense
    model."""
    top_k: int = 0
    """Experts that the router chooses for a token."""

    def __post_init__(self) -> None:
        for name in ("layers", "hidden_size", "heads", "ffn_size"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name}={getattr(self, name)} must be at least 1")
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        if kv_heads <= 0 or self.heads % kv_heads:
            raise ConfigurationError(
                f"kv_heads={kv_heads} must divide heads={self.heads}; leave it out for plain "
                "multi-head attention"
            )
        if not min(self.experts, 1) <= self.top_k <= self.experts:
            raise ConfigurationError(
                f"top_k={self.top_k} must be from 1 to experts={self.experts}, or both 0 for a "
                "dense model"
            )

    @classmethod
    def vision(cls, *, layers: int, hidden_size: int, heads: int, ffn_size: int) -> TransformerCost:
        """A vision transformer: full attention, plain feed-forward; lengths count patches."""
        sizes = {"layers": layers, "hidden_size": hidden_size, "heads": heads, "ffn_size": ffn_size}
        return cls(**sizes, causal=False, gated=False)

    @property
    def per_token(self) -> float:
        """Operations per token, attention pairs left out."""
        kv_share = (self.kv_heads or self.heads) / self.heads
        attention = 2 * self.hidden_size**2 * (1 + kv_share)
        networks = self.top_k or 1
        feed_forward = networks * (3 if self.gated else 2) * self.hidden_size * self.ffn_size
        feed_forward += self.hidden_size * self.experts
        head = self.hidden_size * self.vocab_size
        return 3 * 2 * (self.layers * (attention + feed_forward) + head)

    @property
    def per_pair(self) -> float:
        """Operations per (query, key) pair of the full square of a sample."""
        return 3 * self.layers * 4 * self.hidden_size * (0.5 if self.causal else 1.0)

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        return _polynomial(shapes, packed, 0.0, self.per_token, self.per_pair)


@dataclass(frozen=True, kw_only=True)
class FittedCost:
    """Seconds of a group, as measured on the hardware at hand: see `fit`."""

    per_group: float
    per_token: float
    per_pair: float

    def __post_init__(self) -> None:
        values = [getattr(self, f.name) for f in fields(self)]
        if min(values) < 0 or max(values) == 0 or not np.isfinite(values).all():
            raise ConfigurationError(
                f"coefficients {values} must be finite, none negative and not all zero"
            )

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        return _polynomial(shapes, packed, self.per_group, self.per_token, self.per_pair)


UNKNOWN_MODEL = FittedCost(per_group=0.0, per_token=1.0, per_pair=1 / 24_000)
"""The time of a model of which nothing is known, in tokens of short samples: attention takes as
long as all else in samples of 24,000 tokens. On an H100 that is so at 14,000 tokens for a model of
half a billion parameters, at 42,000 for one of 7, and at 65,000 for one of 72; a length that is too
small makes steps less uneven than one that is too large."""
