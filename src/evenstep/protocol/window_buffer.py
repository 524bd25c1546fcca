"""What one rank has received and not yet emitted, in order of arrival.

Every sample that a rank may receive has an arrival number, counted from 0. Numbers increase along
the buffer; some may be missing, if a bad sample was skipped or was trained on before a resume. The
window is the front of the buffer, and holds every sample that has been in a window before: so
samples numbered from `RoundStart.taken` on are new, and a checkpoint need not store them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array, rounded_up
from evenstep.cost.vision_language import UNMEASURED, Ratios
from evenstep.errors import InvariantError
from evenstep.plan.fit import ONE_STEP, Fit, Updates
from evenstep.plan.label_reading import FIRST

COLUMNS = ("length", "supervised", "patches", "images", "patch_pairs", "shows", "source")
"""What a window holds of each sample: tokens, supervised tokens, vision patches, images (and videos
and sounds), the sum over images of their squared patches, bits of what its labels show of how
models read them, and the number of its source in a mixture."""

TOO_LONG = 8
"""Bit of "shows": the sample was too long, and was cut or is a group by itself; of several pieces
the first has it. See `evenstep.plan.too_long`."""


def read_columns(columns: Int64Array, labels: str | None) -> Int64Array:
    """[7, samples] `COLUMNS`, with first labels counted as models read them: see
    `evenstep.plan.label_reading`. Unchanged while that is unknown, and if it has been done."""
    first = columns[5] & FIRST
    if labels is None or not first.any():
        return columns
    columns = columns.copy()
    columns[1] += first * (labels == "every")
    columns[5] -= first
    return columns


@dataclass(frozen=True, kw_only=True)
class RoundStart:
    """All that one rank needs to resume from the beginning of a round."""

    round: int
    step: int
    """Steps of the epoch before this round."""
    taken: int
    """Arrival numbers below this one have been in a window; it is the next to be received."""
    numbers: Int64Array
    """[samples] arrival numbers of the window, increasing."""
    columns: Int64Array
    """[7, samples] of each sample what `COLUMNS` names."""
    ages: Int64Array
    """[samples] rounds in which each sample was in the window and not planned."""
    quota: int | None = None
    """Samples that the rank gathered for the window; None if that is still to be decided."""
    window_size: int | None = None
    """Samples that windows of this round should hold on any rank; None before the first round."""
    window_limit: int | None = None
    """Samples that all ranks have memory for; None if that is unknown."""
    entries: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """[samples + queued] where samples are dealt on demand: the entries of the ranks' stream that
    the window's samples are, and after them those of arrival numbers from `taken` on."""
    next_entry: int = 0
    """First entry of the stream that no rank had drawn."""
    seen_lengths: tuple[int, int] = (0, 0)
    """Tokens, and the sum of squared lengths, of all samples that have been in a window, as
    policies see them."""
    too_long: int = 0
    """Samples of this rank that were too long: those with `TOO_LONG` that have been in a window,
    and those left out that have lower arrival numbers than `taken`."""
    labels: str | None = None
    """How models read the labels of the job, "causal" or "every"; None while no sample that was in
    a window depends on it."""
    fits: tuple[Fit, Fit] | None = None
    """How many tokens a group may have, in this round, and from the next on; None where the policy
    says it."""
    updates: Updates = ONE_STEP
    """Which steps are an update."""
    filled: tuple[int, int] = (0, 0)
    """Real tokens of steps, and what their groups should have had, where `update_tokens` is given:
    see `evenstep.protocol.agreed`."""
    ratios: tuple[Ratios, Ratios] = (UNMEASURED, UNMEASURED)
    """What pairs of tokens and patches were measured to cost: in this round, and from the next on.
    See `evenstep.cost.vision_language`."""

    @property
    def queued(self) -> int:
        """Samples dealt to the rank that no window had held."""
        return max(len(self.entries) - len(self.numbers), 0)

    def fresh(self, *, other_ranks: bool = False) -> RoundStart:
        """A round with an empty window, for samples that are numbered anew, that knows of the job
        what is known from the next round on.

        Args:
            other_ranks: there are more of them, or fewer, so they may have other memory left.
        """
        fit = None if self.fits is None else self.fits[1]
        if other_ranks and fit is not None:
            fit = Fit(max(fit.tokens // 2, 1), fit.longest)
        return RoundStart.empty(
            labels=self.labels,
            ratios=(self.ratios[1], self.ratios[1]),
            fits=None if fit is None else (fit, fit),
            updates=self.updates,
            filled=self.filled,
        )

    @classmethod
    def empty(cls, round: int = 0, step: int = 0, **known: Any) -> RoundStart:
        """A round that begins with an empty window and arrival number 0.

        Args:
            known: other fields.
        """
        none = np.empty(0, np.int64)
        # A row of columns is contiguous: planners sort along it.
        columns = np.empty((len(COLUMNS), 0), np.int64)
        window: dict[str, Any] = {"numbers": none, "columns": columns, "ages": none}
        return cls(round=round, step=step, taken=0, **window, **known)


class WindowBuffer:
    """Received samples, the window first. See the module docstring."""

    def __init__(self, start: RoundStart | None = None, *, multiple: int = 1) -> None:
        """
        Args:
            multiple: of tokens to which each sample is padded, as policies see it.
        """
        start = start or RoundStart.empty()
        self._multiple = multiple
        self._arrived: list[tuple[Int64Array, Int64Array]] = []  # not yet in the arrays below
        self.columns, self.numbers, self.ages = start.columns, start.numbers, start.ages
        self.next_number = start.taken
        self._first_taken = self.taken = start.taken
        """Numbers below this one have been in a window, though they may be planned by now."""
        self.seen = len(self.numbers)
        """Samples at the front that have been in a window and are not planned yet."""
        self._count = len(self.numbers)
        self._first_seen = self._seen_lengths = start.seen_lengths
        self._first_too_long = self._too_long = start.too_long
        self._left_out = np.empty(0, np.int64)  # from then on
        self.ended = False
        """Nothing more will be appended."""
        self._labels = start.labels

    def __len__(self) -> int:
        return self._count

    def leave_out(self, numbers: Int64Array) -> None:
        """Notes samples that are too long and are not trained on."""
        self._left_out = np.append(self._left_out, numbers)

    def append(self, columns: Int64Array, numbers: Int64Array | None = None) -> Int64Array:
        """Adds samples after all earlier ones; returns their arrival numbers."""
        if self.ended:
            raise InvariantError("samples received after the end of the source")
        if numbers is None:
            numbers = np.arange(self.next_number, self.next_number + len(columns))
        elif len(numbers) and (
            numbers[0] < self.next_number or (len(numbers) > 1 and np.diff(numbers).min() < 1)
        ):
            raise InvariantError(
                f"arrival numbers {numbers[0]} to {numbers[-1]} do not follow "
                f"{self.next_number - 1}"
            )
        if len(numbers):
            self._arrived.append((columns, numbers))
            self._count += len(numbers)
            self.next_number = int(numbers[-1]) + 1
        return numbers

    def gather(self) -> None:
        """Moves all that has arrived into the arrays."""
        if not self._arrived:
            return
        columns = [read_columns(new.T, self._labels) for new, _ in self._arrived]
        numbers = [new for _, new in self._arrived]
        self._arrived.clear()
        self.columns = np.concatenate([self.columns, *columns], axis=1)
        self.numbers = np.concatenate([self.numbers, *numbers])
        ages = np.zeros(len(self.numbers) - len(self.ages), np.int64)
        self.ages = np.concatenate([self.ages, ages])

    def read_labels(self, labels: str) -> Int64Array:
        """Counts first labels as models read them, from now on; returns [7, samples] the window's
        columns."""
        self._labels = labels
        self.columns = read_columns(self.columns, labels)
        return self.columns[:, : self.seen]

    def skip_to(self, number: int) -> None:
        """Samples below this arrival number have come, or never will."""
        self.next_number = max(self.next_number, number)

    def look(self, size: int, *, round: int, step: int, taken: int = 0) -> RoundStart:
        """The window of a new round: the first `size` samples, or all that were in the window
        before, if those are more.

        Args:
            taken: arrival numbers below it count as having been in a window, whether they came or
                not.
        """
        self.gather()
        before, self.seen = self.seen, max(self.seen, min(size, len(self.numbers)))
        new = rounded_up(self.columns[0, before : self.seen], self._multiple)
        tokens, squares = self._seen_lengths
        self._seen_lengths = tokens + int(new.sum()), squares + int((new * new).sum())
        self._too_long += int(np.count_nonzero(self.columns[5, before : self.seen] & TOO_LONG))
        numbers = self.numbers[: self.seen]
        self.taken = max(self.taken, taken)
        if self.ended and self.seen < size:  # what was left out behind them has come, too
            self.taken = max(self.taken, self.next_number)
        if len(numbers):
            # An earlier window may have held a later number, which was planned before this one.
            self.taken = max(self.taken, int(numbers[-1]) + 1)
        return RoundStart(
            round=round,
            step=step,
            taken=self.taken,
            numbers=numbers,
            columns=self.columns[:, : self.seen],
            ages=self.ages[: self.seen],
            quota=size,
            seen_lengths=self._seen_lengths,
            too_long=self._too_long + int(np.count_nonzero(self._left_out < self.taken)),
            labels=self._labels,
        )

    def forget_window(self) -> None:
        """Returns to the state before the first window, which will be formed again."""
        self.seen, self.taken = 0, self._first_taken
        self._seen_lengths = self._first_seen
        self._too_long = self._first_too_long

    def remove(self, positions: Int64Array) -> None:
        """Removes samples by their positions in the window, each named once; those that stay in it
        are a round older then."""
        keep = np.ones(len(self.numbers), bool)
        keep[positions] = False
        older = np.zeros(len(self.numbers), np.int64)
        older[: self.seen] = 1
        self.columns, self.numbers = self.columns[:, keep], self.numbers[keep]
        self.ages = (self.ages + older)[keep]
        self.seen -= len(positions)
        self._count -= len(positions)
