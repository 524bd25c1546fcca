"""Windows of ranks that share one stream, dealt out to them on demand.

After each round every rank knows what all hold: their proposals say how many samples and tokens
were in their windows, their receipts how many of these are trained on. From that all compute the
same deal (`evenstep.plan.epoch`), so nothing further is exchanged. A rank draws its samples
about a window before it plans with them, so that workers have time to prepare them.

Arrival numbers count the samples dealt to a rank. ``entries`` says which of the stream they are::

    arrival number   0 .. bound - 1           bound .. dealt - 1        dealt ..
                     have been in a window    queued: being prepared    not drawn yet
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.plan.epoch import Holdings, dealt_entries, next_deal, next_window
from evenstep.protocol.bodies import ProposalHeads
from evenstep.protocol.receipts import RoundTotals
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer
from evenstep.protocol.window_size import WindowSize


class DealtWindows:
    """What one rank knows of the deals of an epoch, round by round."""

    def __init__(
        self,
        size: WindowSize,
        *,
        rank: int,
        world_size: int,
        entries: int,
        start: RoundStart | None,
    ) -> None:
        """
        Args:
            entries: of the stream that the ranks share; more than there can be until
                `end_of_stream` says it.
            start: the round to resume from, or the samples to begin with.
        """
        self._size = size
        self._rank = rank
        self._world_size = world_size
        self._total = entries
        start = start or RoundStart.empty()
        self._resumes_round = start.quota is not None
        self.next_entry = start.next_entry
        """First entry of the stream that no rank has drawn."""
        # Entries by arrival number, from `_base` on; -1 for those trained on.
        self._base = int(start.numbers[0]) if len(start.numbers) else start.taken
        held = np.full(start.taken - self._base, -1, np.int64)
        window, queued = np.split(start.entries, [len(start.numbers)])
        held[start.numbers - self._base] = window
        self._entries = np.concatenate([held, queued])
        self._bound = start.taken
        self._queued = np.zeros(world_size, np.int64)
        self._new = np.empty(0, np.int64)
        self._first: tuple[Int64Array, int, int, Int64Array] | None = None
        """Entries, base, bound and queues before the first window was filled."""
        self._first_again = False
        self._before: tuple[Holdings, Int64Array, Int64Array, int, int] | None = None
        """What was held before the last deal, entries, new ones, next entry and bound."""

    def end_of_stream(self, entries: int) -> None:
        """The stream has no more entries than these. A deal that counted on more is made again."""
        self._total = entries
        if self.next_entry > entries:
            assert self._before is not None
            held, self._entries, self._new, self.next_entry, self._bound = self._before
            self._queued = held.queued
            self._fill(self._deal(held))

    # As `LookAhead`

    def take_new(self) -> Int64Array | None:
        """Entries dealt to this rank since the last call, to be received in this order; None once
        all have been named."""
        new, self._new = self._new, self._new[:0]
        if not len(new) and self.next_entry == self._total:
            return None
        return new

    @property
    def done(self) -> bool:
        return self.next_entry == self._total and not self._queued.any()

    def samples_left(self, buffer: WindowBuffer, start: RoundStart | None) -> int:
        """Samples queued on this rank."""
        return self._base + len(self._entries) - self._bound

    def begin(self, left: Int64Array) -> None:
        self._queued = left
        if not self._resumes_round:  # else its window is filled, and the next deal made
            nothing = np.zeros(self._world_size, np.int64)
            held = self._deal(self._held(nothing, nothing, 0, 0))
            self._first = self._entries, self._base, self._bound, self._queued
            self._fill(held)

    def begin_again(self) -> None:
        assert self._first is not None
        self._entries, self._base, self._bound, self._queued = self._first
        nothing = np.zeros(self._world_size, np.int64)
        self._fill(self._held(nothing, nothing, 0, 0))
        self._first_again = True

    def missing(self, buffer: WindowBuffer, round: int) -> int:
        missing = max(0, self._bound - buffer.next_number)
        if missing and buffer.ended:
            raise InvariantError(f"{missing} samples that were dealt to this rank never came")
        return missing

    def count(self, buffer: WindowBuffer, round: int) -> int:
        return int(np.searchsorted(buffer.numbers, self._bound))

    def look(
        self, buffer: WindowBuffer, *, round: int, step: int, most: int | None = None
    ) -> RoundStart:
        buffer.gather()
        count = self.count(buffer, round)
        size = min(count, most or count)
        start = buffer.look(size, round=round, step=step, taken=self._bound)
        numbers = start.numbers
        found = self._entries[numbers - self._base]
        queued = self._entries[self._bound - self._base :]
        oldest = int(numbers[0]) if len(numbers) else self._bound
        self._entries, self._base = self._entries[oldest - self._base :], oldest
        return replace(
            start,
            window_size=self._size.current,
            window_limit=self._size.limit,
            entries=np.concatenate([found, queued]),
            next_entry=self.next_entry,
        )

    def exhausted(self, start: RoundStart) -> bool:
        return self.next_entry == self._total and not self._queued[self._rank]

    def end_round(self, heads: ProposalHeads, totals: RoundTotals, left: Int64Array) -> None:
        if self._first_again:  # the next windows are filled
            self._first_again = False
            return
        held = self._held(
            heads.samples - totals.samples.sum(axis=1),
            heads.tokens - totals.tokens.sum(axis=1),
            int(heads.samples.sum()),
            int(heads.tokens.sum()),
        )
        self._fill(self._deal(held))

    def _held(
        self, samples: Int64Array, tokens: Int64Array, seen: int, seen_tokens: int
    ) -> Holdings:
        return Holdings(
            samples=samples,
            tokens=tokens,
            queued=self._queued,
            seen_samples=seen,
            seen_tokens=seen_tokens,
        )

    def _deal(self, held: Holdings) -> Holdings:
        """Deals, as far as the stream goes."""
        self._before = held, self._entries, self._new, self.next_entry, self._bound
        if left := self._total - self.next_entry:
            counts = next_deal(held, left=left, window=self._size.most)
            own = dealt_entries(counts, self._rank, self.next_entry)
            self._entries = np.concatenate([self._entries, own])
            self._new = np.concatenate([self._new, own])
            self._queued = self._queued + counts
            self.next_entry += int(counts.sum())
        return replace(held, queued=self._queued)

    def _fill(self, held: Holdings) -> None:
        """Fills the next windows from what is queued."""
        taken = next_window(held, window=self._size.most)
        self._bound += int(taken[self._rank])
        self._queued = self._queued - taken
