"""`OfflinePolicy`: an epoch planned as a whole, from lengths that are known in advance.

Upper bounds: a policy that sees all lengths can form groups at least as well as one that sees a
window of them. The price is a pass over the data before training, and another whenever the
tokenizer, the template or the augmentation changes. See `ReplayPolicy` for how such an epoch is
then trained on.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, PaddedTokenCost
from evenstep.errors import InvariantError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.lengths import Lengths
from evenstep.plan.policy import Plan, Policy, Proposal, Window


@dataclass(frozen=True)
class OfflinePolicy(Policy):
    """Options of all offline policies; a subclass deals the epoch out."""

    lengths: Lengths = field(kw_only=True)
    """Lengths of all samples, by dataset index: an array, or the result of
    `evenstep.read_lengths`."""
    cost: Cost = field(default=PaddedTokenCost(), kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", Lengths.of(self.lengths))

    @property
    @abc.abstractmethod
    def largest_group(self) -> int:
        """Samples of the largest group that `deal` may form."""

    @abc.abstractmethod
    def deal(
        self, lengths: Int64Array, world_size: int, *, seed: int, epoch: int
    ) -> list[Groups]: ...

    def window_size(self, buffer_size: int) -> int:
        return max(buffer_size, self.largest_group)

    def propose(self, window: Window) -> Proposal:
        raise InvariantError(f"{self.name} plans a whole epoch: see Policy.deal")

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        raise InvariantError(f"{self.name} plans a whole epoch: see Policy.deal")
