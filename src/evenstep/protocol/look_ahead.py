"""How many samples each rank gathers for a round, so that all ranks run out in the same one.

Where every rank knows how many samples it has left, all ranks spread theirs over as many rounds as
the largest share needs, so that they finish together and no rank ends with a tiny window.
Otherwise every rank gathers a full window. For example, with windows of 4 samples::

    samples left    rounds needed     gathered in this round
    rank 0: 10      ceil(10 / 4) = 3  ceil(10 / 3) = 4
    rank 1:  7                        ceil( 7 / 3) = 3
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.protocol.bodies import ProposalHeads
from evenstep.protocol.receipts import RoundTotals
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer
from evenstep.protocol.window_size import WindowSize

_UNKNOWN = -1  # samples left, on a rank that does not know the size of its share


class LookAhead:
    """What one rank knows of the samples that all ranks have left, round by round."""

    next_entry = 0  # as there is no shared stream

    def __init__(
        self,
        size: WindowSize,
        *,
        rank: int,
        world_size: int,
        share: int | None,
        start: RoundStart | None,
    ) -> None:
        """
        Args:
            share: samples of this rank in the whole epoch; None where unknown.
            start: the round to resume from. It is planned again as it was, when the ranks knew less
                than they do now.
        """
        self._size = size
        self._rank = rank
        self._share = share
        self._resumed_quota = start.quota if start is not None else None
        self._left: Int64Array = np.full(world_size, _UNKNOWN, np.int64)

    def samples_left(self, buffer: WindowBuffer, start: RoundStart | None) -> int:
        """Samples of this rank that are still to be planned, which it sends to all ranks.

        Counts the rest of the share and what the windows so far have left, never what else has
        arrived: that depends on timing, and this number decides steps.

        Args:
            start: the round that is being settled; None before the first.
        """
        if self._share is None:
            return _UNKNOWN
        if start is not None and not len(start.numbers):
            return 0  # finished, whatever the size of the share
        return max(self._share - buffer.taken, 0) + buffer.seen

    def begin(self, left: Int64Array) -> None:
        """Takes the samples left on every rank, in rank order, before the first round."""
        self._left = left

    def missing(self, buffer: WindowBuffer, round: int) -> int:
        """Samples still to be received before a round can begin."""
        return 0 if buffer.ended else max(0, self._quota() - len(buffer))

    def count(self, buffer: WindowBuffer, round: int) -> int:
        """Samples of the buffer that are to be in a round's window, at most."""
        return max(self._quota(), buffer.seen)

    def take_new(self) -> Int64Array | None:
        """Entries of a shared stream to receive; None, as the rank has a share of its own."""
        return None

    def look(
        self, buffer: WindowBuffer, *, round: int, step: int, most: int | None = None
    ) -> RoundStart:
        """The window of a round.

        Args:
            most: samples, if fewer than wanted.
        """
        start = buffer.look(most or self._quota(), round=round, step=step)
        return replace(start, window_size=self._size.current, window_limit=self._size.limit)

    def exhausted(self, start: RoundStart) -> bool:
        """Whether nothing will be added to a window. Where all ranks know the size of their shares
        this is decided by numbers alone: when a rank notices the end of its source depends on
        timing."""
        if start.quota is not None and len(start.numbers) < start.quota:
            return True
        return self._all_known() and (self._share or 0) <= start.taken

    @property
    def done(self) -> bool:
        """Whether a rank whose window is empty has finished the epoch."""
        return True

    def begin_again(self) -> None:
        """Starts again with smaller first windows."""

    def end_round(self, heads: ProposalHeads, totals: RoundTotals, left: Int64Array) -> None:
        """Takes what all ranks' messages of a round say; `left` as in `begin`."""
        self._left = left
        self._resumed_quota = None

    def _quota(self) -> int:
        """Samples that this rank gathers for the next round."""
        if self._resumed_quota is not None:
            return self._resumed_quota
        size = self._size.most
        own = int(self._left[self._rank])
        if own <= 0 or not self._all_known():
            return size
        rounds = -(-int(self._left.max()) // size)
        return -(-own // rounds)

    def _all_known(self) -> bool:
        return bool(self._left.min() >= 0)
