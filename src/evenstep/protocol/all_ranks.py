"""`AllRanks`: a job's ranks in one place, which plans for all of them from one stream of samples.

They are the `RankProtocol` machines that ranks of a `DataLoader` have, and what they would exchange
is handed over as it is. So a centre makes the steps that ranks make without one, of the same
stream. Samples are named by their entries in the stream: 0, 1, 2, ...

A policy that deals on demand takes the stream's next entries for whichever rank needs them; under
any other, entry e is of rank ``e % world_size``. Where the stream ends is known once it has. Then
the steps in which every rank has samples are the last ones, and what is left is in no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.protocol.epoch_options import EpochOptions
from evenstep.protocol.planned_step import PlannedStep
from evenstep.protocol.rank_protocol import RankProtocol
from evenstep.protocol.window_buffer import RoundStart
from evenstep.protocol.wire import Exchanged

ENDLESS = 1 << 48
"""Entries of a stream whose end is not known."""


class SharedStream(Protocol):
    """The samples that the ranks share."""

    @property
    def endless(self) -> bool:
        """Whether it never ends. Else entries are reached a window before ranks plan with them, so
        that the last ones are dealt evenly."""
        ...

    def reach(self, count: int) -> int:
        """How many entries there are, of so many that are needed; fewer only at the end."""
        ...

    def columns(self, entries: Int64Array) -> Int64Array:
        """[entries, k] what `RankProtocol.receive` takes of each."""
        ...


@dataclass(frozen=True, kw_only=True)
class RoundOfAll:
    """All that ranks need to resume from the beginning of a round."""

    starts: tuple[RoundStart, ...]
    """[ranks]"""
    total: int
    """Entries of the stream, `ENDLESS` where its end was not known."""

    @property
    def world_size(self) -> int:
        return len(self.starts)

    def entries_of(self, rank: int, numbers: Int64Array) -> Int64Array:
        """[numbers] entries of a rank's samples, by their arrival numbers in its window."""
        start = self.starts[rank]
        if len(start.entries):
            return start.entries[np.searchsorted(start.numbers, numbers)]
        return numbers * self.world_size + rank

    def needed(self, entries: Int64Array) -> Int64Array:
        """The entries, out of some ascending ones, that this round or a later one can have."""
        starts = self.starts
        windows = [self.entries_of(rank, start.numbers) for rank, start in enumerate(starts)]
        if dealt := any(len(start.entries) for start in starts):
            windows = [start.entries for start in starts]
        held = np.isin(entries, np.concatenate(windows))
        if dealt:
            return entries[held | (entries >= starts[0].next_entry)]
        taken = np.array([start.taken for start in starts])
        ranks = entries % self.world_size
        return entries[held | (entries // self.world_size >= taken[ranks])]


@dataclass(frozen=True, kw_only=True)
class StepOfAll:
    """One step on all ranks."""

    groups: tuple[tuple[Int64Array, ...], ...]
    """[ranks] of each micro-batch the entries."""
    costs: Sequence[float]
    """[ranks] in the unit of the policy's cost."""


class AllRanks:
    """See the module docstring."""

    def __init__(
        self, options: EpochOptions, stream: SharedStream, *, begin: RoundOfAll | None = None
    ) -> None:
        """
        Args:
            options: with ``exhausted="stop"``.
            begin: the round to resume from.
        """
        self._stream, self._dealt = stream, options.policy.deals_on_demand
        self._total = ENDLESS if begin is None else begin.total
        starts = (None,) * options.world_size if begin is None else begin.starts
        self._ranks = [
            RankProtocol(
                options,
                rank=rank,
                entries=self._total if self._dealt else None,
                start=start,
                has_filler_sample=True,
            )
            for rank, start in enumerate(starts)
        ]
        self._queued = [
            np.empty(0, np.int64) if start is None else start.entries[len(start.numbers) :]
            for start in starts
        ]
        """[ranks] entries that each is to receive."""
        self._next = [0 if start is None else start.taken for start in starts]
        """[ranks] the turn of the next entry that each receives, where it has a share."""
        self.begun = begin
        """The round of the last steps."""

    @property
    def finished(self) -> bool:
        return self._ranks[0].finished

    def next_round(self) -> list[StepOfAll]:
        """The steps of the next round that has any; none once the ranks have finished."""
        while not self.finished:
            (self._fill_dealt if self._dealt else self._fill_shares)()
            total = self._total
            messages = Exchanged([rank.outgoing() for rank in self._ranks])
            steps = [rank.incoming(messages) for rank in self._ranks]
            if steps[0]:
                starts = tuple(own[0].round.start for own in steps)
                self.begun = RoundOfAll(starts=starts, total=total)
                return [self._step(each) for each in zip(*steps, strict=True)]
        return []

    def _step(self, own: tuple[PlannedStep, ...]) -> StepOfAll:
        assert self.begun is not None
        groups = [
            tuple(self.begun.entries_of(rank, group) for group in step.micro_batches)
            for rank, step in enumerate(own)
        ]
        return StepOfAll(groups=tuple(groups), costs=own[0].totals.cost.tolist())

    def _fill_dealt(self) -> None:
        drawn = self._ranks[0].drawn
        ends = self._total == ENDLESS and not self._stream.endless
        if ends and (count := self._stream.reach(drawn)) < drawn:
            self._total = count
            for rank in self._ranks:
                rank.end_of_stream(count)
        for number, rank in enumerate(self._ranks):
            if (new := rank.newly_dealt()) is not None and len(new):
                self._queued[number] = np.concatenate([self._queued[number], new])
            if wanted := rank.wanted:
                now, self._queued[number] = np.split(self._queued[number], [wanted])
                self._stream.reach(int(now[-1]) + 1)
                rank.receive(self._stream.columns(now))

    def _fill_shares(self) -> None:
        for number, rank in enumerate(self._ranks):
            while wanted := rank.wanted:
                turns = self._next[number] + np.arange(wanted)
                entries = turns * len(self._ranks) + number
                count = self._stream.reach(int(entries[-1]) + 1)
                entries = entries[entries < count]
                rank.receive(self._stream.columns(entries))
                self._next[number] += len(entries)
                if len(entries) < wanted:
                    rank.end_of_source()
