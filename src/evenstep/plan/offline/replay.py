"""`ReplayPolicy`: a rank's groups of an epoch that was planned offline, as a policy.

A policy that knows all lengths deals the epoch out before it begins: each rank gets its samples in
the order of its groups. What is left to do online is to cut the stream of arrivals where the groups
end, in step with the other ranks, which this policy does; so an epoch that was planned offline has
all that the protocol gives: equal steps, fillers, exact resume.

Sample number n of the rank's share is in group g where ``ends[g - 1] <= n < ends[g]``: with the
ends 3 and 5, samples 0, 1, 2 and then 3, 4. A bad sample that was skipped is missing from its
group; a group of which all samples are missing is left out.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError
from evenstep.plan.delegating_policy import DelegatingPolicy
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policy import Plan, Policy, Proposal, Window


class ReplayPolicy(DelegatingPolicy):
    """Cuts what `policy` dealt to one rank into its groups again."""

    lengths = None  # the epoch has been dealt out

    def __init__(self, policy: Policy, ends: Int64Array) -> None:
        """
        Args:
            ends: [groups] increasing; position in the rank's share at which each group ends.
        """
        super().__init__(policy)
        self.ends = ends

    @property
    def looks_ahead(self) -> bool:
        return False

    def propose(self, window: Window) -> Proposal:
        numbers = window.numbers
        if numbers is None:
            raise InvariantError(f"{self.name} was planned offline and needs arrival numbers")
        group = np.searchsorted(self.ends, numbers, side="right")  # [samples] group of each
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        offsets = np.append(begins, len(numbers))
        # The last group is complete where its last sample is here, or nothing more comes.
        complete = window.exhausted or numbers[-1] == self.ends[group[-1]] - 1
        if not complete:
            offsets = offsets[:-1]
        if len(offsets) < 2:
            raise InvariantError(
                f"a window of {len(window)} samples holds no complete group of {self.name}"
            )
        groups = Groups(np.arange(offsets[-1], dtype=np.int64), offsets.astype(np.int64))
        return Proposal(np.array([len(groups)], np.int64), groups, window)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        counts = messages[:, 0]
        return Plan(proposal.groups.take(np.arange(counts[counts > 0].min())))
