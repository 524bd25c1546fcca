"""`ContextPlan`: for every micro-batch, which ranks form a group, and which documents it has.

Invariant: every document is in one group of one micro-batch; the groups of a micro-batch are
contiguous ranks, one after the other from rank 0 to the last; a group of g ranks has no more than
g x tokens_per_rank tokens. A group may be without documents where there are fewer than ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, InvariantError


@dataclass(frozen=True, eq=False)
class ContextPlan:
    """Groups, micro-batch after micro-batch, from rank 0 on.

    Four ranks, documents of 9, 2, 3 and 4 tokens and one micro-batch could make
    ``micro_batch=[0, 0]``, ``first=[0, 3]``, ``size=[3, 1]``, ``documents=[0, 1, 3, 2]``,
    ``offsets=[0, 3, 4]``: ranks 0 to 2 share documents 0, 1 and 3, and rank 3 has document 2.
    """

    ranks: int
    micro_batches: int
    micro_batch: Int64Array
    """[groups] the micro-batch of each, ascending."""
    first: Int64Array
    """[groups] its first rank."""
    size: Int64Array
    """[groups] its ranks."""
    documents: Int64Array
    """[documents] positions in the lengths that were planned, group after group."""
    offsets: Int64Array
    """[groups + 1] group g has ``documents[offsets[g]:offsets[g + 1]]``."""

    def __len__(self) -> int:
        return len(self.size)

    def group(self, index: int) -> Int64Array:
        """Documents of one group, in the order of its row."""
        return self.documents[self.offsets[index] : self.offsets[index + 1]]

    def group_of(self, micro_batch: int, rank: int) -> int:
        """Index of the group that `rank` is in.

        Raises:
            ConfigurationError: there is no such micro-batch or rank.
        """
        if not (0 <= micro_batch < self.micro_batches and 0 <= rank < self.ranks):
            raise ConfigurationError(
                f"micro_batch={micro_batch}, rank={rank}: the plan has {self.micro_batches} "
                f"micro-batches and {self.ranks} ranks, counted from 0"
            )
        key = self.micro_batch * self.ranks + self.first
        return int(np.searchsorted(key, micro_batch * self.ranks + rank, side="right")) - 1

    def tokens(self, lengths: Int64Array) -> Int64Array:
        """[groups] tokens of each group's row."""
        until = np.append(0, lengths[self.documents].cumsum())
        return np.diff(until[self.offsets])

    def check(self, lengths: Int64Array, tokens_per_rank: int) -> None:
        """Raises `InvariantError` unless the invariant of the module holds for these documents."""
        if not np.array_equal(np.sort(self.documents), np.arange(len(lengths))):
            raise InvariantError("the plan does not hold every document once")
        ends = self.first + self.size
        begins = np.append(True, np.diff(self.micro_batch) != 0)  # a micro-batch begins here
        wrong = np.where(begins, self.first != 0, self.first != np.roll(ends, 1))
        wrong |= np.append(begins[1:], True) & (ends != self.ranks)
        present = np.unique(self.micro_batch)
        if wrong.any() or (self.size < 1).any() or len(present) != self.micro_batches:
            raise InvariantError(
                f"the groups of a micro-batch are not all {self.ranks} ranks, one after the other"
            )
        most = -(-self.tokens(lengths) // self.size)
        if len(most) and int(most.max()) > tokens_per_rank:
            raise InvariantError(
                f"a rank has {most.max():,} tokens, over the limit of {tokens_per_rank:,}"
            )
