"""How much work documents are: what workload-balanced packing makes equal.

A document of d tokens takes ``quadratic * d² + linear * d`` units: attention, which looks only at
the document itself, and everything else. So the work of a micro-batch is the sum over its
documents, whatever else lies in it, and only the ratio of the two coefficients matters. Both are
integers, and so is all that is added up from them: plans do not depend on rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes, PaddedTokenCost, TokenCost
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least

__all__ = ["DocumentCost"]


_LARGEST = 2**62
"""Work that an int64 holds with room to spare."""


@dataclass(frozen=True, kw_only=True)
class DocumentCost:
    """Work of documents in whole units. It is a `Cost` of packed groups, too."""

    linear: int = 24_576
    """Units per token. The default is that of a dense model of about 7B parameters, where
    attention over a document of 24,576 tokens takes as long as everything else."""
    quadratic: int = 1
    """Units per squared token; 0 counts tokens alone."""

    def __post_init__(self) -> None:
        check_at_least(0, linear=self.linear, quadratic=self.quadratic)
        if not self.linear and not self.quadratic:
            raise ConfigurationError("linear=0 and quadratic=0: no document would be any work")

    @classmethod
    def of(cls, cost: Cost) -> DocumentCost:
        """What a cost says of packed documents, its part that every micro-batch pays left out.

        Args:
            cost: has `per_token` and `per_pair`, as `TransformerCost` and `FittedCost` do; or one
                that counts tokens.

        Raises:
            ConfigurationError: it is none of these, so that work may not be a sum over documents.
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
                f"cost={cost!r} has no per_token and per_pair, so the work of a document is not "
                "known; give a TransformerCost, a FittedCost or a DocumentCost"
            ) from error
        if pair <= 0:
            return cls(linear=1, quadratic=0)
        ratio = token / pair
        # Below 1,000 units per token, units are made smaller, so that rounding is not felt even in
        # short documents.
        unit = min(max(1, math.ceil(1000 / ratio)), 1000) if ratio > 5e-4 else 1
        return cls(linear=round(unit * ratio), quadratic=unit)

    def of_documents(self, lengths: Int64Array) -> Int64Array:
        """[documents] int64 work of each, where `lengths` is int64 tokens."""
        return lengths * (self.quadratic * lengths + self.linear)

    def longest_within(self, work: float) -> int:
        """Tokens of the longest document of at most this much work."""
        if not self.quadratic:
            return int(work // self.linear)
        half = self.linear / (2 * self.quadratic)
        root = int(math.sqrt(half * half + work / self.quadratic) - half)
        # The square root is off by one where it rounds.
        return max(
            length for length in (root - 1, root, root + 1) if self.of_document(length) <= work
        )

    def of_document(self, length: int) -> int:
        """Work of one document."""
        return length * (self.quadratic * length + self.linear) if length > 0 else length

    def check_range(self, tokens: int) -> None:
        """Raises `ConfigurationError` where `tokens` in one document would be too much work to
        count in an int64."""
        if self.of_document(tokens) >= _LARGEST:
            raise ConfigurationError(
                f"{tokens:,} tokens are {self.of_document(tokens):,} units of work at "
                f"quadratic={self.quadratic}, linear={self.linear}, over {_LARGEST:,}; use smaller "
                "coefficients of the same ratio"
            )

    def __call__(self, shapes: GroupShapes, *, packed: bool) -> Float64Array:
        tokens = shapes.tokens if packed else shapes.padded
        squares = shapes.squares if packed else shapes.padded * shapes.longest
        return (self.quadratic * squares + self.linear * tokens).astype(np.float64)
