"""What documents cost, and the limits of a step of packed micro-batches (WLB-LLM, section 4.1).

A document of d tokens costs ``quadratic * d² + linear * d``: attention, which stays within the
document, and everything else. So a micro-batch costs the sum over its documents, and only the ratio
of the two coefficients matters. Both are integers, and so are all sums: plans do not depend on
rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes, PaddedTokenCost, TokenCost
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.value_checks import check_at_least, check_given

_LARGEST = 2**62
"""A cost that an int64 holds with room to spare."""


@dataclass(frozen=True, kw_only=True)
class DocumentCost:
    """Cost of documents in whole units; as a `Cost`, that of packed groups."""

    linear: int = 24_576
    """Units per token. The default is that of a dense model of about 7B parameters, where
    attention over a document of 24,576 tokens takes as long as everything else."""
    quadratic: int = 1
    """Units per squared token; 0 counts tokens alone."""

    def __post_init__(self) -> None:
        check_at_least(0, linear=self.linear, quadratic=self.quadratic)
        if not self.linear and not self.quadratic:
            raise ConfigurationError("linear=0 and quadratic=0: every document would cost nothing")

    @classmethod
    def of(cls, cost: Cost) -> DocumentCost:
        """Takes the parts per token and per pair from a cost, and drops a constant per group.

        Args:
            cost: one with `per_token` and `per_pair`, as `TransformerCost` and `FittedCost`; or
                one that counts tokens.

        Raises:
            ConfigurationError: any other cost, which may not be a sum over documents.
        """
        if isinstance(cost, DocumentCost):
            return cost
        if isinstance(cost, (TokenCost, PaddedTokenCost)):
            return cls(linear=1, quadratic=0)
        coefficients: Any = cost
        try:
            token, pair = float(coefficients.per_token), float(coefficients.per_pair)
        except (AttributeError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"cost={cost!r} has no per_token and per_pair, so the cost of a document is not "
                "known; give a TransformerCost or FittedCost of evenstep.cost, or a "
                "DocumentCost of evenstep.plan"
            ) from error
        if pair <= 0:
            return cls(linear=1, quadratic=0)
        ratio = token / pair
        # With fewer than 1,000 units per token, units are made smaller, so that rounding hardly
        # matters in short documents either.
        unit = min(max(1, math.ceil(1000 / ratio)), 1000) if ratio > 5e-4 else 1
        return cls(linear=round(unit * ratio), quadratic=unit)

    def of_documents(self, lengths: Int64Array) -> Int64Array:
        """[documents] int64 cost of each; `lengths` is int64 tokens."""
        return lengths * (self.quadratic * lengths + self.linear)

    def of_document(self, length: int) -> int:
        """Cost of one document."""
        return length * (self.quadratic * length + self.linear) if length > 0 else length

    def check_range(self, tokens: int) -> None:
        """Raises `ConfigurationError` if a document of `tokens` costs more than an int64 holds."""
        if self.of_document(tokens) >= _LARGEST:
            raise ConfigurationError(
                f"a document of {tokens:,} tokens costs {self.of_document(tokens):,} units at "
                f"quadratic={self.quadratic}, linear={self.linear}, over the limit of "
                f"{_LARGEST:,}; use smaller coefficients of the same ratio"
            )

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        tokens = shapes.tokens if packed else shapes.padded
        squares = shapes.squares if packed else shapes.padded * shapes.longest
        return (self.quadratic * squares + self.linear * tokens).astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """A step has at most `micro_batches` micro-batches of at most `max_tokens` each."""

    context: int
    """Tokens that a micro-batch without outliers holds on average."""
    micro_batches: int
    max_tokens: int | None = None
    """Tokens that no micro-batch exceeds, a limit of memory. None is 1.25 x context. It must be at
    least 1.1 x context: with less room, micro-batches without long documents could not cost as much
    as those with them."""
    max_delay: int = 256
    """Rounds after which an outlier does not wait for others any longer."""
    cost: DocumentCost = field(default_factory=DocumentCost)

    def __post_init__(self) -> None:
        check_given(context=self.context, micro_batches=self.micro_batches)
        check_at_least(1, context=self.context, micro_batches=self.micro_batches)
        check_at_least(0, max_delay=self.max_delay)
        check_at_least(1, max_tokens=self.max_tokens)
        if 10 * self.cap < 11 * self.context:
            raise ConfigurationError(
                f"max_tokens={self.max_tokens} must be at least 1.1 x context, "
                f"{-(-11 * self.context // 10):,}, or long documents cannot be balanced; raise "
                "max_tokens or lower context"
            )
        self.cost.check_range(self.cap * self.micro_batches)

    @property
    def cap(self) -> int:
        """`max_tokens`, or its default."""
        if self.max_tokens is None:
            return max(5 * self.context // 4, -(-11 * self.context // 10))
        return self.max_tokens

    def check(self, lengths: Int64Array) -> None:
        """Raises `SampleError` if a document fits in no micro-batch."""
        if len(lengths) and int(lengths.max()) > self.cap:
            longest = int(lengths.argmax())
            raise SampleError(
                f"document {longest} has {lengths[longest]:,} tokens, over the {self.cap:,} of a "
                "micro-batch; split or truncate it (`pieces_of`), or raise max_tokens"
            )
