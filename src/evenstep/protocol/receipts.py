"""What one rank sends of its steps, and the totals of all of them, as each rank learns them.

After a round is settled each rank knows its own groups but not the other ranks'. The receipt
carries, for each of its steps, the numbers that loss scaling and `StepInfo` need: a table of one
row for each number, compressed, as many of them are constant or small.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from evenstep.arrays import Float64Array, Int64Array, rounded_up
from evenstep.cost import Cost, GroupShapes
from evenstep.cost.vision_language import vision_part
from evenstep.errors import InvariantError
from evenstep.plan.length_moments import LengthMoments

_UNIT = 64.0  # tokens: half precision ends at 65,504, and lengths may reach millions
_HALF_LIMIT = float(np.finfo(np.float16).max)


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
            for name in ("patches", "images")
            if (column := getattr(shapes, name)) is not None
        }
        # In few digits, which compress well.
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
            length_mean=_halved(moments.mean),
            length_deviation=_halved(np.sqrt(moments.variance)),
            length_skew=_halved(np.cbrt(moments.third / moments.tokens)),
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

    def encode(self) -> bytes:
        """The receipt as bytes, which `RoundTotals.decode` restores exactly."""
        padding, unsupervised = (
            self.padded_tokens - self.tokens,
            self.tokens - self.supervised_tokens,
        )
        counts = [self.samples, self.tokens, padding, unsupervised, self.patches, self.images]
        floats = [getattr(self, name).view(np.int64) for name in _FLOATS]
        floats[0] = floats[0] ^ _bits(self.padded_tokens)  # costs may be just these
        table = np.stack([*counts, *floats, *self.by_source.T])
        # First bytes beside first bytes: the higher ones are alike.
        return zlib.compress(np.moveaxis(table[..., None].view(np.uint8), -1, 1).tobytes(), 1)


_COUNTS = 6  # columns of integers in a receipt
_FLOATS = ("cost", "length_mean", "length_deviation", "length_skew", "vision_cost")


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


def _bits(numbers: Int64Array) -> Int64Array:
    """Of these numbers as floats."""
    return numbers.astype(np.float64).view(np.int64)


def _halved(tokens: Float64Array) -> Float64Array:
    """In half precision."""
    half = np.clip(tokens / _UNIT, -_HALF_LIMIT, _HALF_LIMIT).astype(np.float16)
    return half.astype(np.float64) * _UNIT


@dataclass(frozen=True, eq=False)
class StepTotals(Totals):
    """What each rank trains on in one step. Arrays of shape [ranks]."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StepTotals):
            return NotImplemented
        names = [f.name for f in fields(self)]
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in names)

    __hash__ = None  # type: ignore[assignment]  # arrays can change


@dataclass(frozen=True, eq=False)
class RoundTotals(Totals):
    """One round on all ranks. Arrays of shape [ranks, steps]."""

    @classmethod
    def decode(cls, receipts: Sequence[bytes | memoryview], *, sources: int = 0) -> RoundTotals:
        """Totals from all ranks' encoded receipts, in rank order.

        Args:
            sources: of a mixture.

        Raises:
            InvariantError: two ranks planned groups, but not equally many.
        """
        rows = _COUNTS + len(_FLOATS) + 2 * sources
        tables = [np.frombuffer(zlib.decompress(each), np.uint8) for each in receipts]
        counts = [len(table) // (8 * rows) for table in tables]
        steps = max(counts)
        planes = np.zeros((len(receipts), rows, 8, steps), np.uint8)
        for rank, (count, table) in enumerate(zip(counts, tables)):
            if count not in (0, steps):
                raise InvariantError(
                    f"rank {rank} planned {count} steps, and rank {counts.index(steps)} {steps}"
                )
            if count:
                planes[rank] = table.reshape(rows, 8, steps)
        found = np.ascontiguousarray(np.moveaxis(planes, 2, -1)).view(np.int64)[..., 0]
        samples, tokens, padding, unsupervised, patches, images = found[:, :_COUNTS].swapaxes(0, 1)
        found[:, _COUNTS] ^= _bits(tokens + padding)
        floats = found[:, _COUNTS : _COUNTS + len(_FLOATS)].view(np.float64).swapaxes(0, 1)
        return cls(
            *(samples, tokens, tokens + padding, tokens - unsupervised),
            patches=patches,
            images=images,
            by_source=found[:, _COUNTS + len(_FLOATS) :].swapaxes(1, 2),
            **dict(zip(_FLOATS, floats)),
        )

    def __len__(self) -> int:
        """Steps of the round."""
        return int(self.samples.shape[1])

    def step(self, index: int) -> StepTotals:
        """Totals of one step, as views."""
        return StepTotals(*(getattr(self, f.name)[:, index] for f in fields(self)))
