"""The shape of a transformer: the numbers that its speed depends on."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from evenstep.cost import TransformerCost
from evenstep.errors import ConfigurationError


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
        self.operations  # noqa: B018  (checks the fields)
        if self.hidden_size % (2 * self.heads):
            raise ConfigurationError(
                f"hidden_size={self.hidden_size} over heads={self.heads} must give heads of an "
                "even size, for rotary positions; check both"
            )

    @property
    def operations(self) -> TransformerCost:
        """The model's cost in floating-point operations, which needs no measurement."""
        return TransformerCost(**asdict(self))

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.heads

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.heads if self.kv_heads is None else self.kv_heads
