"""What every rank learns about every step: a receipt per rank and round.

After a round is settled each rank knows its own groups but not the other ranks'. The receipt
carries, for each of its steps, the numbers that loss scaling and `StepInfo` need.

Most receipts of a round have the same layout, and all of one layout are decoded together: so the
time that a rank spends on a round hardly grows with the number of ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from evenstep.arrays import BoolArray
from evenstep.errors import InvariantError
from evenstep.protocol.bodies import MOST, ProposalHeads
from evenstep.protocol.own_receipt import COLUMNS, DTYPES, TEXT, Totals, TotalsLayout, from_bits
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
        heads: ProposalHeads,
        *,
        round: int = 0,
        layout: TotalsLayout = TEXT,
    ) -> RoundTotals:
        """Totals from all ranks' encoded receipts, in rank order.

        Args:
            heads: what each rank proposed: its steps cannot hold more.
            layout: of the receipts.

        Raises:
            DamagedMessageError: a receipt has no layout or not the bytes for it, or says what
                cannot be.
            InvariantError: two ranks planned groups, but not equally many.
        """
        alike, counts = _alike(receipts, heads, round, layout)
        steps = int(counts.max())
        table = np.zeros((len(layout.columns), len(receipts), steps), np.int64)
        costs: list[tuple[str, list[int], npt.NDArray[np.float32]]] = []
        for head, ranks in alike.items():
            if not counts[ranks[0]]:
                continue
            records = np.frombuffer(
                b"".join([receipts[rank] for rank in ranks]), _record(head, layout)
            )
            sent = records.dtype.names or ()
            rows = np.array(ranks)
            for column, name in enumerate(layout.columns):
                low = records["lows"][:, column, None]
                table[column, rows] = low + records[name] if name in sent else low
            costs += [(name, ranks, records[name]) for name in layout.costs if name in sent]
        by_source = np.moveaxis(table[len(table) - 2 * layout.sources :], 0, -1)
        samples, tokens, padding, unsupervised, *others = table[: len(table) - 2 * layout.sources]
        bits, vision = others[: len(COLUMNS) - 4], others[len(COLUMNS) - 4 :]
        padded = tokens + padding
        cost = {"cost": padded.astype(np.float64), "vision_cost": np.zeros(padded.shape)}
        for name, ranks, values in costs:
            cost[name][ranks] = values
        mean, deviation, skew = (from_bits(column) for column in bits)
        totals = cls(
            *(samples, tokens, padded, tokens - unsupervised),
            *(cost["cost"], mean, deviation, skew),
            by_source=by_source,
        )
        if vision:
            patches, images = vision
            totals = replace(
                totals, patches=patches, images=images, vision_cost=cost["vision_cost"]
            )
        totals._check(heads, counts > 0, round)
        return totals

    def _check(self, heads: ProposalHeads, planned: BoolArray, round: int) -> None:
        """Raises `DamagedMessageError` for totals that cannot be.

        Args:
            heads: what each rank proposed.
            planned: [ranks] whether it planned groups.
        """
        possible = (self.samples >= 1) & (self.samples <= self.tokens)
        possible &= (self.tokens <= self.padded_tokens) & (self.padded_tokens < MOST)
        possible &= (self.supervised_tokens >= 0) & (self.supervised_tokens < MOST)
        possible &= (self.cost >= 0) & (self.cost < np.inf)
        possible &= (self.vision_cost >= 0) & (self.vision_cost <= self.cost)
        possible &= (self.patches >= 0) & (self.patches < MOST)
        possible &= (self.images >= 0) & (self.images < MOST)
        possible &= (self.length_mean >= 0) & (self.length_deviation >= 0)
        possible &= np.isfinite(self.length_mean + self.length_deviation + self.length_skew)
        if sources := self.by_source.shape[-1] // 2:
            possible &= ((self.by_source >= 0) & (self.by_source < MOST)).all(axis=-1)
            possible &= self.by_source[..., :sources].sum(axis=-1) == self.samples
            possible &= self.by_source[..., sources:].sum(axis=-1) == self.tokens
        if not possible[planned].all():
            rank, step = np.argwhere(~possible & planned[:, None])[0].tolist()
            row = {f.name: getattr(self, f.name)[rank, step].tolist() for f in fields(self)}
            raise damaged(rank, RECEIPT, round, f"in its step {step} are {row}")
        summed = np.array([self.samples, self.supervised_tokens, self.tokens])
        sums = summed.sum(axis=2, dtype=np.float64).T  # of integers their sum may be too large for
        held = np.array([heads.samples, heads.supervised, heads.tokens]).T
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


def _mislaid(head: bytes, layout: TotalsLayout) -> str:
    """What is wrong with the head of a receipt; empty if nothing."""
    if len(head) < layout.head.size:
        return f"its totals have {len(head)} bytes"
    steps, *all_widths = layout.head.unpack(head)
    widths, costs = all_widths[: len(layout.columns)], all_widths[len(layout.columns) :]
    wrong = not {0, *DTYPES}.issuperset(widths) or not {0, 4}.issuperset(costs)
    if wrong or (any(head) and not steps):
        said = " and ".join(map(str, costs))
        return f"{steps:,} steps in columns of {widths} and {said} bytes"
    return ""


def _extent(head: bytes, layout: TotalsLayout) -> tuple[int, int]:
    """Steps of a receipt, and its bytes."""
    steps, *widths = layout.head.unpack(head)
    return steps, layout.head.size + (layout.lows.size + steps * sum(widths) if steps else 0)


def _record(head: bytes, layout: TotalsLayout) -> np.dtype[np.void]:
    """The dtype of a whole receipt: a column that takes no bytes has no field."""
    steps, *widths = layout.head.unpack(head)
    names = (*layout.columns, *layout.costs)
    kinds = [*(DTYPES.get(w) for w in widths[: len(layout.columns)])]
    kinds += [np.dtype("<f4") for _ in layout.costs]
    columns = [(name, kind, (steps,)) for name, kind, w in zip(names, kinds, widths) if w]
    lows = ("lows", "<i8", (len(layout.columns),))
    return np.dtype([("head", f"V{layout.head.size}"), lows, *columns])


def _alike(
    receipts: Sequence[bytes | memoryview], heads: ProposalHeads, round: int, layout: TotalsLayout
) -> tuple[dict[bytes, list[int]], npt.NDArray[np.int64]]:
    """By head, the ranks of its receipts; and [ranks] the steps of each.

    Raises:
        DamagedMessageError, InvariantError: see `RoundTotals.decode`.
    """
    alike: dict[bytes, list[int]] = {}  # head -> ranks
    for rank, receipt in enumerate(receipts):
        alike.setdefault(bytes(receipt[: layout.head.size]), []).append(rank)
    counts = np.zeros(len(receipts), np.int64)
    for head, ranks in alike.items():
        if wrong := _mislaid(head, layout):
            raise damaged(ranks[0], RECEIPT, round, wrong)
        counts[ranks], size = _extent(head, layout)
        for rank in ranks:
            if counts[rank] > heads.samples[rank]:
                wrong = f"{counts[rank]:,} steps of {heads.samples[rank]:,} samples"
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
    return alike, counts
