"""Filler samples: what ranks run zero-loss steps with once they have no samples left for a step.

A rank keeps one of its own samples for that. A rank that has finished without ever receiving one
says so in its proposal; then the first rank that still has samples sends its shortest with its
receipt, before any of the round's steps is known.
"""

from __future__ import annotations

from evenstep.protocol.bodies import ProposalHeads
from evenstep.protocol.window_buffer import RoundStart


class Lending:
    """One rank's side: whether it lends or borrows a sample in the round that is being settled."""

    def __init__(self, *, rank: int, has_sample: bool) -> None:
        self._rank = rank
        self.has_sample = has_sample
        """Whether this rank has a filler sample, its own or a borrowed one."""
        self.borrowed = b""
        """A sample that another rank lent to this one; empty if none."""
        self.lent = b""
        """The sample that this rank lends in this round; empty if none."""
        self.lender: int | None = None
        """The rank that lends one in this round; None where no rank needs one."""

    def begin(self, heads: ProposalHeads) -> None:
        """Finds out from all ranks' proposals which rank has to lend in this round."""
        asked = heads.lacks_filler_sample.any() and not heads.finished.all()
        self.lender = int(heads.finished.argmin()) if asked else None
        self.lent = b""

    def due(self, start: RoundStart) -> int | None:
        """Arrival number of the sample that this rank has still to lend: its shortest."""
        if self.lender != self._rank or self.lent:
            return None
        return int(start.numbers[start.columns[0].argmin()])

    def end(self, lent: bytes) -> None:
        """Borrows the sample that a rank lent in its receipt, if this rank has none."""
        if not self.has_sample:
            self.borrowed = lent
            self.has_sample = bool(lent)
