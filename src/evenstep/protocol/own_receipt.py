"""What one rank sends of its steps, as columns of numbers in few bytes.

Each column is stored as its minimum and the differences from it, in the narrowest unsigned integer
that holds them, and in no bytes at all where the column is constant. Moments of lengths are rounded
to half precision first, and the bits of that are such an integer.

Where the policy counts patches there are more columns, `VISION`, and for a mixture two for each of
its sources; all ranks have one policy and one mixture, so they know.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from evenstep.arrays import Float64Array, Int64Array, rounded_up
from evenstep.cost import Cost, GroupShapes
from evenstep.cost.vision_language import vision_part
from evenstep.errors import InvariantError
from evenstep.plan.length_moments import LengthMoments

_MOMENTS = ("length_mean", "length_deviation", "length_skew")
COLUMNS = ("samples", "tokens", "padding", "unsupervised", *_MOMENTS)  # as sent, before `cost`
VISION_COLUMNS = ("patches", "images")


class TotalsLayout(NamedTuple):
    """How totals are sent: a head, the lows, the columns, and the costs as float32."""

    columns: tuple[str, ...]
    """Columns of integers."""
    costs: tuple[str, ...]
    sources: int = 0

    def by_source(self, sources: int) -> TotalsLayout:
        """With the samples and the tokens of each source of a mixture."""
        each = [f"{what} of source {n}" for what in ("samples", "tokens") for n in range(sources)]
        return TotalsLayout((*self.columns, *each), self.costs, sources)

    @property
    def head(self) -> struct.Struct:
        """Steps, and bytes per step of each column and each cost."""
        return struct.Struct(f"<I{len(self.columns) + len(self.costs)}B")

    @property
    def lows(self) -> struct.Struct:
        """Minimum of each column."""
        return struct.Struct(f"<{len(self.columns)}q")


TEXT = TotalsLayout(COLUMNS, ("cost",))
VISION = TotalsLayout((*COLUMNS, *VISION_COLUMNS), ("cost", "vision_cost"))
_UNIT = 64.0  # tokens: half precision ends at 65,504, and lengths may reach millions
_HALF_LIMIT = float(np.finfo(np.float16).max)
_WIDTHS = ((0, 1), (1, 1 << 8), (2, 1 << 16), (4, 1 << 32))  # bytes, and the spread they hold
DTYPES = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<i8")}


@dataclass(frozen=True, eq=False)
class Totals:
    """Arrays of one shape; zero for a rank that runs a filler."""

    samples: Int64Array
    tokens: Int64Array
    """Real tokens."""
    padded_tokens: Int64Array
    """Tokens computed, padding included; equal to `tokens` where groups are packed."""
    supervised_tokens: Int64Array
    """Tokens that contribute to the loss."""
    cost: Float64Array
    """In the unit of the policy's cost."""
    length_mean: Float64Array
    """Mean over tokens of the length of their sample."""
    length_deviation: Float64Array
    """Standard deviation over tokens of that length."""
    length_skew: Float64Array
    """Cube root of the mean over tokens of the cubed difference from `length_mean`."""
    patches: Int64Array = None  # type: ignore[assignment]
    """Vision patches; 0, as in the next two, where the policy does not count them."""
    images: Int64Array = None  # type: ignore[assignment]
    """Images, videos and sounds."""
    vision_cost: Float64Array = None  # type: ignore[assignment]
    """What of `cost` is of the vision tower."""
    by_source: Int64Array = None  # type: ignore[assignment]
    """[..., 2 x sources] samples of each source of a mixture, then tokens of each; of none for any
    other dataset."""

    def __post_init__(self) -> None:
        for name, like in (("patches", "samples"), ("images", "samples"), ("vision_cost", "cost")):
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.zeros_like(getattr(self, like)))
        if self.by_source is None:
            none = np.zeros((*np.shape(self.samples), 0), np.int64)
            object.__setattr__(self, "by_source", none)

    @property
    def moments(self) -> LengthMoments:
        """How tokens are spread over lengths."""
        tokens = self.tokens.astype(np.float64)
        return LengthMoments(
            samples=self.samples.astype(np.float64),
            tokens=tokens,
            mean=self.length_mean,
            second=tokens * self.length_deviation**2,
            third=tokens * self.length_skew**3,
        )


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
        packed_to: int | None,
        steps: Int64Array,
        by_source: Int64Array | None = None,
    ) -> Receipt:
        """Receipt of groups in emission order.

        Args:
            shapes: by lengths as the policy saw them.
            lengths: [samples] real tokens of each sample, group after group.
            supervised: [groups] supervised tokens.
            packed_to: multiple of tokens to which packed rows are padded; None for padded groups.
            steps: [steps + 1] offsets of each step's groups.
            by_source: see `counts_by_source`.

        Raises:
            InvariantError: a cost is negative or not finite.
        """
        begins = steps[:-1]
        counted = {
            name: np.add.reduceat(column, begins)
            for name in VISION_COLUMNS
            if (column := getattr(shapes, name)) is not None
        }
        # Sent as float32, so every rank, this one included, must use the float32 value; and so for
        # the moments, which are sent as float16.
        with np.errstate(over="ignore"):
            packed = packed_to is not None
            costs = np.add.reduceat(cost(shapes, packed=packed), begins).astype(np.float32)
            vision = np.add.reduceat(vision_part(cost, shapes), begins).astype(np.float32)
        if not ((costs >= 0) & (costs < np.inf)).all():
            raise InvariantError(
                f"steps cost {costs.min()} to {costs.max()} by {cost}; a cost must be a finite "
                "number, not negative and below 1e38"
            )
        offsets = np.append(0, shapes.samples.cumsum())[steps]
        moments = LengthMoments.of(lengths, offsets)
        padded = shapes.padded if packed_to is None else rounded_up(shapes.tokens, packed_to)
        return cls(
            samples=np.add.reduceat(shapes.samples, begins),
            tokens=np.add.reduceat(lengths, offsets[:-1]),
            padded_tokens=np.add.reduceat(padded, begins),
            supervised_tokens=np.add.reduceat(supervised, begins),
            cost=costs.astype(np.float64),
            length_mean=from_bits(_bits(moments.mean)),
            length_deviation=from_bits(_bits(np.sqrt(moments.variance))),
            length_skew=from_bits(_bits(np.cbrt(moments.third / moments.tokens))),
            # What is left of the cost may be rounded to less than nothing.
            vision_cost=np.minimum(vision, costs).astype(np.float64),
            by_source=by_source,  # type: ignore[arg-type]
            **counted,
        )

    @classmethod
    def none(cls) -> Receipt:
        empty = np.empty(0, np.int64)
        none = np.empty(0, np.float64)
        return cls(empty, empty, empty, empty, none, none, none, none)

    def __len__(self) -> int:
        return len(self.samples)

    def encode(self, layout: TotalsLayout = TEXT) -> bytes:
        """The receipt as bytes, which `RoundTotals.decode` restores exactly."""
        if not len(self):
            return bytes(layout.head.size)
        padding = self.padded_tokens - self.tokens
        unsupervised = self.tokens - self.supervised_tokens
        bits = [_bits(getattr(self, name)) for name in _MOMENTS]
        vision = [getattr(self, name) for name in VISION_COLUMNS if name in layout.columns]
        counted = [*bits, *vision, *self.by_source.T]
        table = np.array([self.samples, self.tokens, padding, unsupervised, *counted])
        lows = table.min(axis=1)
        table -= lows[:, None]
        widths = [_width(spread) for spread in table.max(axis=1).tolist()]
        # A cost that is what the receiver takes it for by itself needs no bytes.
        usual = {"cost": self.padded_tokens, "vision_cost": 0}
        costs = [getattr(self, name) for name in layout.costs]
        sent = [bool((own != usual[name]).any()) for own, name in zip(costs, layout.costs)]
        head = layout.head.pack(len(self), *widths, *(4 * each for each in sent))
        parts = [head, layout.lows.pack(*lows.tolist())]
        parts += [row.astype(DTYPES[w]).tobytes() for row, w in zip(table, widths) if w]
        parts += [own.astype("<f4").tobytes() for own, each in zip(costs, sent) if each]
        return b"".join(parts)


def counts_by_source(
    source: Int64Array, sources: int, lengths: Int64Array, offsets: Int64Array
) -> Int64Array:
    """[steps, 2 * sources] samples of each source, then their tokens.

    Args:
        source, lengths: [samples] number of the source, and tokens, of each.
        offsets: [steps + 1] of the samples of each step.
    """
    steps = len(offsets) - 1
    place = np.arange(steps).repeat(np.diff(offsets)) * sources + source
    counts, summed = np.bincount(place, minlength=steps * sources), np.zeros(steps * sources, int)
    np.add.at(summed, place, lengths)
    return np.hstack([counts.reshape(-1, sources), summed.reshape(-1, sources)])


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
