"""`FixedBatch`: the same number of samples in every batch, in arrival order.

Does what torch's own DataLoader does, under evenstep's guarantees: the baseline for all others.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost
from evenstep.plan.groups import Groups
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.value_checks import check_at_least, check_given


@dataclass(frozen=True)
class FixedBatch(Policy):
    """Batches of `batch_size` samples in the order in which the sampler draws them.

    Ranks stay aligned because all make as many steps per round as the rank with the fewest full
    batches; the others keep their surplus for the next round, in order.
    """

    batch_size: int
    drop_last: bool = field(default=False, kw_only=True)
    """Drop the last, smaller batch of each rank."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)
    packed: bool = field(default=False, kw_only=True)

    needs_lengths = False
    looks_ahead = False

    def __post_init__(self) -> None:
        check_given(batch_size=self.batch_size)
        check_at_least(1, batch_size=self.batch_size)

    def window_size(self, buffer_size: int) -> int:
        # A round costs two exchanges, so it plans several batches; and a whole number of them.
        return int(self.batch_size * max(1, min(16, buffer_size // self.batch_size)))

    def propose(self, window: Window) -> Proposal:
        count = len(window)
        full = count // self.batch_size
        ends = np.arange(full + 1, dtype=np.int64) * self.batch_size
        if window.exhausted and not self.drop_last and ends[-1] < count:
            ends = np.append(ends, count)
        groups = Groups(np.arange(ends[-1], dtype=np.int64), ends)
        return Proposal(np.array([len(groups)], np.int64), groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        counts = messages[:, 0]
        active = counts[counts > 0]
        window, groups = proposal.window, proposal.groups
        if len(groups) == 0:  # exhausted, and less than one batch left under drop_last
            return Plan(groups, np.arange(len(window), dtype=np.int64))
        steps = min(int(active.min()), len(groups))
        end = groups.offsets[steps]
        kept = Groups(groups.members[:end], groups.offsets[: steps + 1])
        if window.exhausted and steps == len(groups):
            return Plan(kept, np.arange(end, len(window), dtype=np.int64))
        return Plan(kept)
