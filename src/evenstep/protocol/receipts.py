"""What every rank learns about every step: a receipt per rank and round.

After a round is settled each rank knows its own groups but not the other ranks'. The receipt
carries, for each of its steps, the numbers that loss scaling and `StepInfo` need. It is a few bytes
per step: each column is stored as its minimum and the differences from it, in the narrowest
unsigned integer that holds them, and in no bytes at all where the column is constant. Moments of
lengths are rounded to half precision first, and the bits of that are such an integer.

Most receipts of a round have the same layout, and all of one layout are decoded together: so the
time that a rank spends on a round hardly grows with the number of ranks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.errors import InvariantError
from evenstep.plan.length_moments import LengthMoments
from evenstep.protocol.bodies import MOST, ProposalHead
from evenstep.protocol.wire import RECEIPT, damaged

_MOMENTS = ("length_mean", "length_deviation", "length_skew")
_COLUMNS = ("samples", "tokens", "padding", "unsupervised", *_MOMENTS)  # as sent, before `cost`
LAYOUT = struct.Struct("<I8B")  # steps, and bytes per step of each column and of the cost
LOWS = struct.Struct("<7q")  # minimum of each column
_UNIT = 64.0  # tokens: half precision ends at 65,504, and lengths may reach millions
_HALF_LIMIT = float(np.finfo(np.float16).max)
_WIDTHS = ((0, 1), (1, 1 << 8), (2, 1 << 16), (4, 1 << 32))  # bytes, and the spread they hold
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
    """Tokens that contribute to the loss."""
    cost: Float64Array
    """In the unit of the policy's cost."""
    length_mean: Float64Array
    """Mean over tokens of the length of their sample."""
    length_deviation: Float64Array
    """Standard deviation over tokens of that length."""
    length_skew: Float64Array
    """Cube root of the mean over tokens of the cubed difference from `length_mean`."""

    @property
    def moments(self) -> LengthMoments:
        """[ranks] how each rank's tokens are spread over lengths."""
        return _moments(self)

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
    length_mean: Float64Array
    length_deviation: Float64Array
    length_skew: Float64Array

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
            length_mean=_from_bits(_bits(moments.mean)),
            length_deviation=_from_bits(_bits(np.sqrt(moments.variance))),
            length_skew=_from_bits(_bits(np.cbrt(moments.third / moments.tokens))),
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
        parts += [row.astype(_DTYPES[w]).tobytes() for row, w in zip(table, widths) if w]
        if not whole:
            parts.append(self.cost.astype("<f4").tobytes())
        return b"".join(parts)


@dataclass(frozen=True, eq=False)
class RoundTotals:
    """One round on all ranks. Arrays of shape [ranks, steps]; all zero for a rank with fillers."""

    samples: Int64Array
    tokens: Int64Array
    padded_tokens: Int64Array
    supervised_tokens: Int64Array
    cost: Float64Array
    length_mean: Float64Array
    length_deviation: Float64Array
    length_skew: Float64Array

    @classmethod
    def decode(
        cls,
        receipts: Sequence[bytes | memoryview],
        heads: Sequence[ProposalHead],
        *,
        round: int = 0,
    ) -> RoundTotals:
        """Totals from all ranks' encoded receipts, in rank order.

        Args:
            heads: what each rank proposed: its steps cannot hold more.

        Raises:
            DamagedMessageError: a receipt has no layout or not the bytes for it, or says what
                cannot be.
            InvariantError: two ranks planned groups, but not equally many.
        """
        alike: dict[bytes, list[int]] = {}  # layout -> ranks
        for rank, receipt in enumerate(receipts):
            alike.setdefault(bytes(receipt[: LAYOUT.size]), []).append(rank)
        counts = np.zeros(len(receipts), np.int64)
        for layout, ranks in alike.items():
            if wrong := _mislaid(layout):
                raise damaged(ranks[0], RECEIPT, round, wrong)
            counts[ranks], size = _extent(layout)
            for rank in ranks:
                if counts[rank] > heads[rank].samples:
                    wrong = f"{counts[rank]:,} steps of {heads[rank].samples:,} samples"
                elif len(receipts[rank]) != size:
                    wrong = f"its totals have {len(receipts[rank]):,} bytes, and need {size:,}"
                if wrong:
                    raise damaged(rank, RECEIPT, round, wrong)
        steps = int(counts.max())
        if (unequal := (counts > 0) & (counts < steps)).any():
            few, many = int(unequal.argmax()), int(counts.argmax())
            raise InvariantError(
                f"rank {few} planned {counts[few]} steps in round {round}, and rank {many} {steps}"
            )
        table = np.zeros((len(_COLUMNS), len(receipts), steps), np.int64)
        costs: dict[bytes, npt.NDArray[np.float32]] = {}
        for layout, ranks in alike.items():
            if not counts[ranks[0]]:
                continue
            records = np.frombuffer(b"".join([receipts[rank] for rank in ranks]), _record(layout))
            sent = records.dtype.names or ()
            rows = np.array(ranks)
            for column, name in enumerate(_COLUMNS):
                low = records["lows"][:, column, None]
                table[column, rows] = low + records[name] if name in sent else low
            if "cost" in sent:
                costs[layout] = records["cost"]
        samples, tokens, padding, unsupervised, *bits = table
        padded = tokens + padding
        cost = padded.astype(np.float64)
        for layout, values in costs.items():
            cost[alike[layout]] = values
        moments = [_from_bits(column) for column in bits]
        totals = cls(samples, tokens, padded, tokens - unsupervised, cost, *moments)
        totals._check(heads, counts > 0, round)
        return totals

    def _check(self, heads: Sequence[ProposalHead], planned: BoolArray, round: int) -> None:
        """Raises `DamagedMessageError` for totals that cannot be.

        Args:
            heads: what each rank proposed.
            planned: [ranks] whether it planned groups.
        """
        possible = (self.samples >= 1) & (self.samples <= self.tokens)
        possible &= (self.tokens <= self.padded_tokens) & (self.padded_tokens < MOST)
        possible &= (self.supervised_tokens >= 0) & (self.supervised_tokens <= self.tokens)
        possible &= (self.cost >= 0) & (self.cost < np.inf)
        possible &= (self.length_mean >= 0) & (self.length_deviation >= 0)
        possible &= np.isfinite(self.length_mean + self.length_deviation + self.length_skew)
        if not possible[planned].all():
            rank, step = np.argwhere(~possible & planned[:, None])[0].tolist()
            row = {f.name: getattr(self, f.name)[rank, step].item() for f in fields(self)}
            raise damaged(rank, RECEIPT, round, f"in its step {step} are {row}")
        summed = np.array([self.samples, self.supervised_tokens, self.tokens])
        sums = summed.sum(axis=2, dtype=np.float64).T  # of integers their sum may be too large for
        held = np.array([[head.samples, head.supervised, head.tokens] for head in heads])
        if (sums > held).any():
            rank = int((sums > held).any(axis=1).argmax())
            what = (
                f"{held[rank].tolist()} samples, supervised tokens and tokens were in its window, "
            )
            what += f"and {sums[rank].tolist()} are in its steps"
            raise damaged(rank, RECEIPT, round, what)

    def __len__(self) -> int:
        """Steps of the round."""
        return int(self.samples.shape[1])

    def step(self, index: int) -> StepTotals:
        """Totals of one step, as views."""
        return StepTotals(
            self.samples[:, index],
            self.tokens[:, index],
            self.padded_tokens[:, index],
            self.supervised_tokens[:, index],
            self.cost[:, index],
            self.length_mean[:, index],
            self.length_deviation[:, index],
            self.length_skew[:, index],
        )

    @property
    def moments(self) -> LengthMoments:
        """[ranks, steps] how the tokens of each rank and step are spread over lengths."""
        return _moments(self)


def _moments(totals: StepTotals | RoundTotals) -> LengthMoments:
    tokens = totals.tokens.astype(np.float64)
    return LengthMoments(
        samples=totals.samples.astype(np.float64),
        tokens=tokens,
        mean=totals.length_mean,
        second=tokens * totals.length_deviation**2,
        third=tokens * totals.length_skew**3,
    )


def _bits(tokens: Float64Array) -> Int64Array:
    """Half-precision numbers as the integers that have the same bits."""
    half = np.clip(tokens / _UNIT, -_HALF_LIMIT, _HALF_LIMIT).astype(np.float16)
    return half.view(np.int16).astype(np.int64)


def _from_bits(bits: Int64Array) -> Float64Array:
    return bits.astype(np.int16).view(np.float16).astype(np.float64) * _UNIT


def _width(spread: int) -> int:
    for width, limit in _WIDTHS:
        if spread < limit:
            return width
    return 8


def _mislaid(layout: bytes) -> str:
    """What is wrong with the layout of a receipt; empty if nothing."""
    if len(layout) < LAYOUT.size:
        return f"its totals have {len(layout)} bytes"
    steps, *widths, cost = LAYOUT.unpack(layout)
    if not {0, *_DTYPES}.issuperset(widths) or cost not in (0, 4) or (any(layout) and not steps):
        return f"{steps:,} steps in columns of {widths} and {cost} bytes"
    return ""


def _extent(layout: bytes) -> tuple[int, int]:
    """Steps of a receipt, and its bytes."""
    steps, *widths = LAYOUT.unpack(layout)
    return steps, LAYOUT.size + (LOWS.size + steps * sum(widths) if steps else 0)


def _record(layout: bytes) -> np.dtype[np.void]:
    """The dtype of a whole receipt: a column that takes no bytes has no field."""
    steps, *widths, cost = LAYOUT.unpack(layout)
    columns = [(name, _DTYPES[width], (steps,)) for name, width in zip(_COLUMNS, widths) if width]
    if cost:
        columns.append(("cost", np.dtype("<f4"), (steps,)))
    return np.dtype([("layout", f"V{LAYOUT.size}"), ("lows", "<i8", (len(_COLUMNS),)), *columns])
