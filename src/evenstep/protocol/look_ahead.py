"""How many samples each rank gathers for a round, so that all ranks run out in the same one.

Where every rank knows how many samples it has left, all ranks spread theirs over as many rounds as
the largest share needs, so that they finish together and no rank ends with a tiny window.
Otherwise every rank gathers a full window. For example, with windows of 4 samples::

    samples left    rounds needed     gathered in this round
    rank 0: 10      ceil(10 / 4) = 3  ceil(10 / 3) = 4
    rank 1:  7                        ceil( 7 / 3) = 3
"""

from __future__ import annotations

from collections.abc import Sequence

from evenstep.plan.policy import Policy
from evenstep.protocol.window_buffer import RoundStart, WindowBuffer

_UNKNOWN = -1  # samples left, on a rank that does not know the size of its share


class LookAhead:
    """What one rank knows of the samples that all ranks have left, round by round."""

    def __init__(
        self,
        policy: Policy,
        *,
        rank: int,
        world_size: int,
        buffer_size: int,
        share: int | None,
        resumed_quota: int | None,
    ) -> None:
        """
        Args:
            share: samples of this rank in the whole epoch; None where unknown.
            resumed_quota: `RoundStart.quota` of a resumed round. That round is planned again as it
                was, when the ranks knew less than they do now.
        """
        self._policy = policy
        self._rank = rank
        self._buffer_size = buffer_size
        self._share = share if policy.looks_ahead else None
        self._resumed_quota = resumed_quota
        self._left = [_UNKNOWN] * world_size

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

    def learn(self, left: Sequence[int], *, round_ended: bool) -> None:
        """Takes the samples left on every rank, in rank order."""
        self._left = list(left)
        if round_ended:
            self._resumed_quota = None

    def quota(self, round: int) -> int:
        """Samples that this rank gathers for a round."""
        if self._resumed_quota is not None:
            return self._resumed_quota
        size = self._policy.window_size_at(self._buffer_size, round)
        own = self._left[self._rank]
        if own <= 0 or not self._all_known():
            return size
        rounds = -(-max(self._left) // size)
        return -(-own // rounds)

    def is_last_window(self, start: RoundStart) -> bool:
        """Whether this rank's share ends with a window; False where not all ranks know their size.

        Decided by numbers alone: when a rank notices the end of its source depends on timing.
        """
        return self._all_known() and (self._share or 0) <= start.taken

    def _all_known(self) -> bool:
        return min(self._left) >= 0
