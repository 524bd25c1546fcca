"""What every rank learns about every step: a receipt per rank and round.

After a round is settled each rank knows its own groups but not the others'. The receipt carries,
for each of its groups, the numbers that loss scaling and `StepInfo` need. It is a few bytes per
step: each column is stored as its minimum and the differences from it, in the narrowest unsigned
integer that holds them, and in no bytes at all where the column is constant.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from evenstep.cost import Cost, GroupShapes

__all__ = ["Receipt", "StepTotals"]

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

_COUNTS = struct.Struct("<IB")
_COLUMN = struct.Struct("<qB")
_WIDTHS = ((1, 1 << 8), (2, 1 << 16), (4, 1 << 32))
_DTYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<i8")}


@dataclass(frozen=True, eq=False)
class StepTotals:
    """What each rank trains on in one step. Arrays of shape [ranks]; a filler counts nothing."""

    samples: Int64Array
    tokens: Int64Array
    """Real tokens."""
    padded_tokens: Int64Array
    """Tokens computed, padding included; equal to `tokens` where groups are packed."""
    supervised_tokens: Int64Array
    """Tokens that bear loss."""
    cost: Float64Array
    """In the unit of the policy's cost."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepTotals):
            return NotImplemented
        names = [f.name for f in fields(self)]
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]  # arrays can change


@dataclass(frozen=True)
class Receipt:
    """One round on one rank. Arrays of shape [steps]."""

    samples: Int64Array
    tokens: Int64Array
    padded_tokens: Int64Array
    """Tokens as computed: equal to `tokens` where groups are packed."""
    supervised_tokens: Int64Array
    cost: Float64Array

    @classmethod
    def of(
        cls, shapes: GroupShapes, supervised: Int64Array, cost: Cost, *, packed: bool
    ) -> Receipt:
        """Receipt of groups in emission order; `supervised` is [steps] supervised tokens."""
        return cls(
            samples=shapes.samples,
            tokens=shapes.tokens,
            padded_tokens=shapes.tokens if packed else shapes.padded,
            supervised_tokens=supervised,
            # float32 travels, so float32 is what every rank, this one included, must see.
            cost=cost(shapes, packed=packed).astype(np.float32).astype(np.float64),
        )

    @classmethod
    def none(cls) -> Receipt:
        empty = np.empty(0, np.int64)
        return cls(empty, empty, empty, empty, np.empty(0, np.float64))

    def __len__(self) -> int:
        return len(self.samples)

    def encode(self) -> bytes:
        """The receipt as bytes; `decode` gives it back exactly."""
        if not len(self):
            return _COUNTS.pack(0, 0)
        whole = bool((self.cost == self.padded_tokens).all())
        parts = [_COUNTS.pack(len(self), whole)]
        for column in (
            self.samples,
            self.tokens,
            self.padded_tokens - self.tokens,
            self.tokens - self.supervised_tokens,
        ):
            parts += _encode_column(column)
        if not whole:
            parts.append(self.cost.astype("<f4").tobytes())
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes | memoryview) -> Receipt:
        steps, whole = _COUNTS.unpack_from(data)
        if not steps:
            return cls.none()
        at = _COUNTS.size
        columns = []
        for _ in range(4):
            low, width = _COLUMN.unpack_from(data, at)
            at += _COLUMN.size
            if width:
                column = np.frombuffer(data, _DTYPES[width], steps, at).astype(np.int64) + low
                at += width * steps
            else:
                column = np.full(steps, low, np.int64)
            columns.append(column)
        samples, tokens, padding, unsupervised = columns
        padded = tokens + padding
        cost = padded if whole else np.frombuffer(data, "<f4", steps, at)
        return cls(samples, tokens, padded, tokens - unsupervised, cost.astype(np.float64))


def _encode_column(column: Int64Array) -> tuple[bytes, ...]:
    low = int(column.min())
    spread = int(column.max()) - low
    if not spread:
        return (_COLUMN.pack(low, 0),)
    width = next((w for w, limit in _WIDTHS if spread < limit), 8)
    return _COLUMN.pack(low, width), (column - low).astype(_DTYPES[width]).tobytes()
