"""What a group of samples costs, and whether it fits in memory.

The two are kept apart. *Cost* predicts compute and is what gets balanced; a `MemoryLimit` says
what may be collated together at all. A cheap group can still be too big.

A padded group of n samples with longest length m computes n rows of m tokens. A packed group
computes only real tokens, and its documents attend only to themselves, so 10 + 90 tokens attend
10² + 90² = 8,200 units where 50 + 50 attend 5,000.

Everything here is a function of `GroupShapes`, four integer columns with one row per group.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError


@dataclass(frozen=True)
class GroupShapes:
    """The shape of each group: all that its cost depends on. Fields are int64 arrays [groups]."""

    samples: Int64Array
    tokens: Int64Array
    longest: Int64Array
    squares: Int64Array
    """Sum of squared lengths: what packed self-attention computes."""

    @classmethod
    def measure(cls, lengths: npt.ArrayLike, offsets: npt.ArrayLike) -> GroupShapes:
        """Shapes of groups stored one after the other.

        Args:
            lengths: [samples] tokens of each sample, group after group.
            offsets: [groups + 1] group g is ``lengths[offsets[g]:offsets[g + 1]]``; never empty.
        """
        flat = np.asarray(lengths, dtype=np.int64)
        bounds = np.asarray(offsets, dtype=np.int64)
        if len(bounds) <= 1:
            empty = np.empty(0, dtype=np.int64)
            return cls(empty, empty, empty, empty)
        starts = bounds[:-1]
        return cls(
            samples=np.diff(bounds),
            tokens=np.add.reduceat(flat, starts),
            longest=np.maximum.reduceat(flat, starts),
            squares=np.add.reduceat(flat * flat, starts),
        )

    @property
    def padded(self) -> Int64Array:
        """[groups] tokens after padding every sample to the longest of its group."""
        return self.samples * self.longest

    def __len__(self) -> int:
        return len(self.samples)


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

    With experts (mixture of experts), a token computes `top_k` of them, those that are shared, and
    the router, ``h * experts``. That is the cost when experts are evenly chosen.
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
    shared_experts: int = 0
    """Experts that compute every token, beside those chosen."""

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
        if self.vocab_size < 0:
            raise ConfigurationError(f"vocab_size={self.vocab_size} must not be negative")
        if self.experts < 0 or self.shared_experts < 0:
            raise ConfigurationError(
                f"experts={self.experts} and shared_experts={self.shared_experts} must not be "
                "negative"
            )
        least = min(self.experts, 1)
        if not least <= self.top_k <= self.experts:
            raise ConfigurationError(
                f"top_k={self.top_k} must be from {least} to experts={self.experts}; a dense model "
                "has neither"
            )
        if self.shared_experts and not self.experts:
            raise ConfigurationError(
                f"shared_experts={self.shared_experts} needs experts and top_k; for a dense model "
                "raise ffn_size"
            )

    @classmethod
    def vision(cls, *, layers: int, hidden_size: int, heads: int, ffn_size: int) -> TransformerCost:
        """A vision transformer: full attention, plain feed-forward; lengths count patches."""
        return cls(
            layers=layers,
            hidden_size=hidden_size,
            heads=heads,
            ffn_size=ffn_size,
            causal=False,
            gated=False,
        )

    @property
    def per_token(self) -> float:
        """Operations per token, attention pairs left out."""
        kv_share = (self.kv_heads or self.heads) / self.heads
        attention = 2 * self.hidden_size**2 * (1 + kv_share)
        networks = self.top_k + self.shared_experts if self.experts else 1
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


def fit(
    lengths: npt.ArrayLike, seconds: npt.ArrayLike, *, samples: npt.ArrayLike = 1
) -> FittedCost:
    """Fits ``seconds = per_group + per_token * n * l + per_pair * n * l²`` with no negative
    coefficient, minimising relative error, so that short groups count as much as long ones.

    Args:
        lengths: [measurements] tokens per sample of each timed group.
        seconds: [measurements] measured time of each group, positive.
        samples: [measurements] or scalar; samples per timed group.

    Raises:
        ConfigurationError: fewer than three measurements, values that are not positive and finite,
            or arrays that do not match.
        ImportError: SciPy is not installed (``pip install 'evenstep[fit]'``).
    """
    try:
        from scipy.optimize import nnls
    except ImportError as error:
        raise ImportError("evenstep.cost.fit needs SciPy: pip install 'evenstep[fit]'") from error

    length = np.atleast_1d(np.asarray(lengths, dtype=np.float64))
    second = np.atleast_1d(np.asarray(seconds, dtype=np.float64))
    sample = np.asarray(samples, dtype=np.float64)
    if length.shape != second.shape or length.ndim != 1 or len(length) < 3:
        raise ConfigurationError(
            f"need at least three (length, seconds) pairs of equal number, got {length.shape} "
            f"lengths and {second.shape} seconds"
        )
    if sample.shape not in ((), length.shape):
        raise ConfigurationError(
            f"samples of shape {sample.shape} must be one number, or one for each of the "
            f"{len(length)} lengths"
        )
    sample = np.broadcast_to(sample, length.shape)
    for name, values in (("lengths", length), ("seconds", second), ("samples", sample)):
        wrong = values[~(np.isfinite(values) & (values > 0))]
        if len(wrong):
            raise ConfigurationError(f"{name} must be positive and finite, got {wrong[0]}")
    tokens = sample * length
    columns = np.stack([np.ones_like(length), tokens, tokens * length], axis=1) / second[:, None]
    scale = columns.max(axis=0)  # columns differ by many orders of magnitude
    solution = nnls(columns / scale, np.ones_like(length))[0] / scale
    per_group, per_token, per_pair = (float(value) for value in solution)
    return FittedCost(per_group=per_group, per_token=per_token, per_pair=per_pair)


@dataclass(frozen=True, kw_only=True)
class MemoryLimit:
    """Limits of one group, whatever it costs."""

    max_tokens: int
    """Tokens as laid out in memory: samples x longest when padded, real tokens when packed."""
    max_samples: int | None = None
    max_patches: int | None = None
    packed: bool = False

    def __post_init__(self) -> None:
        for name in ("max_tokens", "max_samples", "max_patches"):
            value: Any = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigurationError(f"{name}={value} must be at least 1")

    def fits(self, shapes: GroupShapes, patches: Int64Array | None = None) -> npt.NDArray[np.bool_]:
        """[groups] bool. ``patches`` is [groups], needed where `max_patches` is set."""
        if self.max_patches is not None and patches is None:
            raise ConfigurationError(
                f"max_patches={self.max_patches} needs the patches of each group"
            )
        fits: npt.NDArray[np.bool_] = (
            shapes.tokens if self.packed else shapes.padded
        ) <= self.max_tokens
        if self.max_samples is not None:
            fits &= shapes.samples <= self.max_samples
        if self.max_patches is not None:
            fits &= np.asarray(patches) <= self.max_patches
        return fits
