"""The outcome of a round on one rank: a table of steps, and each step as a row of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups import Groups
from evenstep.protocol.receipts import RoundTotals, StepTotals
from evenstep.protocol.window_buffer import RoundStart


@dataclass(frozen=True)
class SettledRound:
    """One round, as its steps share it."""

    start: RoundStart
    """This rank's window when the round began."""
    groups: Groups
    """This rank's groups of arrival numbers, in emission order; none if its steps are fillers."""
    steps: Int64Array
    """[steps + 1] offsets of each step's groups."""
    totals: RoundTotals
    too_long: int
    """Samples of all ranks that were too long, in the epoch so far."""


@dataclass(slots=True, eq=False)  # not frozen: that triples the time to make one
class PlannedStep:
    """One step on this rank: a row in the tables of its round."""

    index: int
    """Steps of this epoch before this one; the same on all ranks."""
    round: SettledRound

    @property
    def index_in_round(self) -> int:
        """Steps of this round before this one."""
        return self.index - self.round.start.step

    @property
    def members(self) -> Int64Array:
        """[samples] arrival numbers of this rank's samples; empty for a filler step."""
        groups = self.round.groups
        if self.filler:
            return groups.members
        begin, end = groups.offsets[self.round.steps[self.index_in_round : self.index_in_round + 2]]
        return groups.members[begin:end]

    @property
    def micro_batches(self) -> list[Int64Array]:
        """Arrival numbers of each of this rank's micro-batches; none for a filler step."""
        if self.filler:
            return []
        begin, end = self.round.steps[self.index_in_round : self.index_in_round + 2].tolist()
        return [self.round.groups.group(group) for group in range(begin, end)]

    def columns_of(self, numbers: Int64Array) -> Int64Array:
        """[7, samples] what `RoundStart.columns` has of some of this rank's samples."""
        start = self.round.start
        found: Int64Array = start.columns[:, np.searchsorted(start.numbers, numbers)]
        return found

    @property
    def totals(self) -> StepTotals:
        """What each rank trains on in this step."""
        return self.round.totals.step(self.index_in_round)

    @property
    def filler(self) -> bool:
        """Whether this rank has no samples left and runs a zero-loss step so that collectives
        match."""
        return not len(self.round.groups)
