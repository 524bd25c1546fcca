"""What every rank learns about every step: a receipt per rank and round.

After a round is settled each rank knows its own groups but not the other ranks'. The receipt
carries, for each of its steps, the numbers that loss scaling and `StepInfo` need.

Most receipts of a round have the same layout, and all of one layout are decoded together: so the
time that a rank spends on a round hardly grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray
from evenstep.errors import InvariantError
from evenstep.protocol.bodies import MOST, ProposalHead
from evenstep.protocol.own_receipt import COLUMNS, DTYPES, LAYOUT, LOWS, from_bits
from evenstep.protocol.totals import Totals
from evenstep.protocol.wire import RECEIPT, damaged


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
        table = np.zeros((len(COLUMNS), len(receipts), steps), np.int64)
        costs: dict[bytes, npt.NDArray[np.float32]] = {}
        for layout, ranks in alike.items():
            if not counts[ranks[0]]:
                continue
            records = np.frombuffer(b"".join([receipts[rank] for rank in ranks]), _record(layout))
            sent = records.dtype.names or ()
            rows = np.array(ranks)
            for column, name in enumerate(COLUMNS):
                low = records["lows"][:, column, None]
                table[column, rows] = low + records[name] if name in sent else low
            if "cost" in sent:
                costs[layout] = records["cost"]
        samples, tokens, padding, unsupervised, *bits = table
        padded = tokens + padding
        cost = padded.astype(np.float64)
        for layout, values in costs.items():
            cost[alike[layout]] = values
        moments = [from_bits(column) for column in bits]
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
        return StepTotals(*(getattr(self, f.name)[:, index] for f in fields(self)))


def _mislaid(layout: bytes) -> str:
    """What is wrong with the layout of a receipt; empty if nothing."""
    if len(layout) < LAYOUT.size:
        return f"its totals have {len(layout)} bytes"
    steps, *widths, cost = LAYOUT.unpack(layout)
    if not {0, *DTYPES}.issuperset(widths) or cost not in (0, 4) or (any(layout) and not steps):
        return f"{steps:,} steps in columns of {widths} and {cost} bytes"
    return ""


def _extent(layout: bytes) -> tuple[int, int]:
    """Steps of a receipt, and its bytes."""
    steps, *widths = LAYOUT.unpack(layout)
    return steps, LAYOUT.size + (LOWS.size + steps * sum(widths) if steps else 0)


def _record(layout: bytes) -> np.dtype[np.void]:
    """The dtype of a whole receipt: a column that takes no bytes has no field."""
    steps, *widths, cost = LAYOUT.unpack(layout)
    columns = [(name, DTYPES[width], (steps,)) for name, width in zip(COLUMNS, widths) if width]
    if cost:
        columns.append(("cost", np.dtype("<f4"), (steps,)))
    return np.dtype([("layout", f"V{LAYOUT.size}"), ("lows", "<i8", (len(COLUMNS),)), *columns])
