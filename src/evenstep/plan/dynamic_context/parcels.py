"""Parcels: what the planner places. A document is one parcel; tiny ones travel in bundles.

A rank may hold thousands of captions, and one after the other they would take most of the time of
planning. Bundles are small beside a rank's share, so balance does not suffer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.plan.dynamic_context.options import DynamicContext

_FINENESS = 8
"""A bundle holds about this part of what is still to be placed on a rank after it."""


@dataclass(frozen=True, eq=False)
class Parcels:
    """Parcels from the longest document to the shortest. Columns are int64 [parcels]."""

    tokens: Int64Array
    cost: Int64Array
    """Cost of all of its documents, attention included."""
    attention: Int64Array
    longest: Int64Array
    """Tokens of its longest document."""
    documents: Int64Array
    """[documents] positions in the lengths given, parcel after parcel."""
    offsets: Int64Array
    """[parcels + 1] parcel p holds ``documents[offsets[p]:offsets[p + 1]]``."""

    @classmethod
    def of(cls, lengths: Int64Array, options: DynamicContext) -> Parcels:
        """Parcels of all documents.

        Args:
            lengths: [documents] int64, all at least 1.
        """
        # Descending, equal lengths as given: one plain sort of numbers that say both. Lengths are
        # below 2**31, as their squares are costs.
        longest, count = int(lengths.max(initial=0)), len(lengths)
        order = np.sort((longest - lengths) * count + np.arange(count)) % max(count, 1)
        ordered = lengths[order]
        # Bundles become ever finer, as the last ones even out what the others leave. A document of
        # more tokens than the bundle would have is a parcel by itself.
        left = ordered[::-1].cumsum()[::-1]  # [documents] tokens from each on
        shares = options.ranks * (int(left[0]) // options.capacity + 1) if len(left) else 1
        bundle = (_FINENESS * shares * np.log(left[:1] / left)).astype(np.int64)
        starts = np.flatnonzero(np.diff(bundle, prepend=-1))
        attention = options.attention(ordered)
        cost = options.cost.linear * ordered + attention
        return cls(
            tokens=_sums(ordered, starts),
            cost=_sums(cost, starts),
            attention=_sums(attention, starts),
            longest=ordered[starts],
            documents=order,
            offsets=np.append(starts, len(ordered)),
        )

    def __len__(self) -> int:
        return len(self.tokens)

    def expanded(self, parcels: Int64Array, offsets: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Groups of parcels as groups of documents: positions, group after group, and offsets.

        Args:
            parcels: [n] parcels, group after group.
            offsets: [groups + 1] where groups begin in `parcels`.
        """
        if len(self) == len(self.documents):
            return self.documents[parcels], offsets
        counts = np.diff(self.offsets)[parcels]
        until = prefix_sums(counts)
        shift = self.offsets[parcels] - until[:-1]
        return self.documents[np.arange(until[-1]) + shift.repeat(counts)], until[offsets]


def _sums(values: Int64Array, starts: Int64Array) -> Int64Array:
    """Sums of the stretches that begin at `starts`."""
    return np.add.reduceat(values, starts) if len(starts) < len(values) else values
