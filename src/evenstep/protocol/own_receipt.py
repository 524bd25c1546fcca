"""What one rank sends of its steps, as columns of numbers in few bytes.

Each column is stored as its minimum and the differences from it, in the narrowest unsigned integer
that holds them, and in no bytes at all where the column is constant. Moments of lengths are rounded
to half precision first, and the bits of that are such an integer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import InvariantError
from evenstep.plan.length_moments import LengthMoments
from evenstep.protocol.totals import Totals

_MOMENTS = ("length_mean", "length_deviation", "length_skew")
COLUMNS = ("samples", "tokens", "padding", "unsupervised", *_MOMENTS)  # as sent, before `cost`
LAYOUT = struct.Struct("<I8B")  # steps, and bytes per step of each column and of the cost
LOWS = struct.Struct("<7q")  # minimum of each column
_UNIT = 64.0  # tokens: half precision ends at 65,504, and lengths may reach millions
_HALF_LIMIT = float(np.finfo(np.float16).max)
_WIDTHS = ((0, 1), (1, 1 << 8), (2, 1 << 16), (4, 1 << 32))  # bytes, and the spread they hold
DTYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<i8")}


@dataclass(frozen=True, eq=False)
class Receipt(Totals):
    """One round on one rank. Arrays of shape [steps]."""

    @classmethod
    def of(
        cls,
        shapes: GroupShapes,
        lengths: Int64Array,
        supervised: Int64Array,
        cost: Cost,
        *,
        packed: bool,
        steps: Int64Array,
    ) -> Receipt:
        """Receipt of groups in emission order.

        Args:
            lengths: [samples] tokens of each sample, group after group.
            supervised: [groups] supervised tokens.
            steps: [steps + 1] offsets of each step's groups.

        Raises:
            InvariantError: a cost is negative or not finite.
        """
        begins = steps[:-1]
        # Sent as float32, so every rank, this one included, must use the float32 value; and so for
        # the moments, which are sent as float16.
        with np.errstate(over="ignore"):
            costs = np.add.reduceat(cost(shapes, packed=packed), begins).astype(np.float32)
        if not ((costs >= 0) & (costs < np.inf)).all():
            raise InvariantError(
                f"steps cost {costs.min()} to {costs.max()} by {cost}; a cost must be a finite "
                "number, not negative and below 1e38"
            )
        moments = LengthMoments.of(lengths, np.append(0, shapes.samples.cumsum())[steps])
        return cls(
            samples=np.add.reduceat(shapes.samples, begins),
            tokens=np.add.reduceat(shapes.tokens, begins),
            padded_tokens=np.add.reduceat(shapes.tokens if packed else shapes.padded, begins),
            supervised_tokens=np.add.reduceat(supervised, begins),
            cost=costs.astype(np.float64),
            length_mean=from_bits(_bits(moments.mean)),
            length_deviation=from_bits(_bits(np.sqrt(moments.variance))),
            length_skew=from_bits(_bits(np.cbrt(moments.third / moments.tokens))),
        )

    @classmethod
    def none(cls) -> Receipt:
        empty = np.empty(0, np.int64)
        none = np.empty(0, np.float64)
        return cls(empty, empty, empty, empty, none, none, none, none)

    def __len__(self) -> int:
        return len(self.samples)

    def encode(self) -> bytes:
        """The receipt as bytes, which `RoundTotals.decode` restores exactly."""
        if not len(self):
            return bytes(LAYOUT.size)
        padding = self.padded_tokens - self.tokens
        unsupervised = self.tokens - self.supervised_tokens
        bits = [_bits(getattr(self, name)) for name in _MOMENTS]
        table = np.array([self.samples, self.tokens, padding, unsupervised, *bits])
        lows = table.min(axis=1)
        table -= lows[:, None]
        widths = [_width(spread) for spread in table.max(axis=1).tolist()]
        whole = bool((self.cost == self.padded_tokens).all())
        parts = [LAYOUT.pack(len(self), *widths, 0 if whole else 4), LOWS.pack(*lows.tolist())]
        parts += [row.astype(DTYPES[w]).tobytes() for row, w in zip(table, widths) if w]
        if not whole:
            parts.append(self.cost.astype("<f4").tobytes())
        return b"".join(parts)


def _bits(tokens: Float64Array) -> Int64Array:
    """Half-precision numbers as the integers that have the same bits."""
    half = np.clip(tokens / _UNIT, -_HALF_LIMIT, _HALF_LIMIT).astype(np.float16)
    return half.view(np.int16).astype(np.int64)


def from_bits(bits: Int64Array) -> Float64Array:
    return bits.astype(np.int16).view(np.float16).astype(np.float64) * _UNIT


def _width(spread: int) -> int:
    for width, limit in _WIDTHS:
        if spread < limit:
            return width
    return 8
