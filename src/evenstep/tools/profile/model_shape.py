"""The shape of a transformer: the numbers that its speed depends on."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.cost import TransformerCost
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The fields have the meaning of those of `TransformerCost`."""

    layers: int
    hidden_size: int
    heads: int
    ffn_size: int
    kv_heads: int | None = None
    causal: bool = True
    gated: bool = True

    def __post_init__(self) -> None:
        check_at_least(
            1,
            layers=self.layers,
            hidden_size=self.hidden_size,
            heads=self.heads,
            ffn_size=self.ffn_size,
            kv_heads=self.kv_heads,
        )
        self.operations  # noqa: B018  (checks that kv_heads divides heads)
        if self.hidden_size % (2 * self.heads):
            raise ConfigurationError(
                f"hidden_size={self.hidden_size} over heads={self.heads} must give heads of an "
                "even size, for rotary positions; check both"
            )

    @property
    def operations(self) -> TransformerCost:
        """The model's cost in floating-point operations, which needs no measurement."""
        return TransformerCost(
            layers=self.layers,
            hidden_size=self.hidden_size,
            heads=self.heads,
            ffn_size=self.ffn_size,
            kv_heads=self.kv_heads,
            causal=self.causal,
            gated=self.gated,
        )

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads
