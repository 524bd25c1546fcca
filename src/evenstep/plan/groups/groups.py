"""`Groups`: groups of samples as two flat arrays.

Invariant: `members` names every sample at most once, and no group is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import GroupShapes


@dataclass(frozen=True)
class Groups:
    """Group g holds ``members[offsets[g]:offsets[g + 1]]``."""

    members: Int64Array
    """[samples] positions in the window, or arrival numbers; the owner of the object says which."""
    offsets: Int64Array
    """[groups + 1] strictly increasing, from 0 to the number of samples."""

    @classmethod
    def empty(cls) -> Groups:
        return cls(np.empty(0, np.int64), np.zeros(1, np.int64))

    @classmethod
    def of(cls, members: Sequence[Int64Array]) -> Groups:
        """From the members of each group."""
        offsets = np.cumsum([0, *map(len, members)], dtype=np.int64)
        return cls(np.concatenate([np.empty(0, np.int64), *members]), offsets)

    @classmethod
    def by_label(cls, labels: Int64Array, order: Int64Array | None = None) -> Groups:
        """From the number of each sample's group, in the order of these numbers.

        Args:
            labels: [samples] int64 below 2**31. A number that no sample has is left out, and so is
                a sample that has -1.
            order: [samples] positions in the order in which they become members; None is ascending.
        """
        # Label and position share one int64 key, which sorts faster than a stable argsort.
        keys = (labels if order is None else labels[order]) << 32
        keys += np.arange(len(keys))
        keys.sort()
        keys = keys[np.searchsorted(keys, 0) :]
        positions = keys & 0xFFFFFFFF
        sizes = np.bincount(keys >> 32)
        offsets = np.zeros(np.count_nonzero(sizes) + 1, np.int64)
        sizes[sizes > 0].cumsum(out=offsets[1:])
        return cls(positions if order is None else order[positions], offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Int64Array:
        """[groups] samples in each group."""
        return self.offsets[1:] - self.offsets[:-1]

    def group(self, index: int) -> Int64Array:
        return self.members[self.offsets[index] : self.offsets[index + 1]]

    def take(self, order: Int64Array) -> Groups:
        """The groups named by `order`, in that order. Vectorised over groups."""
        sizes = self.sizes[order]
        offsets = np.zeros(len(order) + 1, np.int64)
        sizes.cumsum(out=offsets[1:])
        # Sample k of the result comes from its group's old start plus its rank inside the group.
        shift = (self.offsets[order] - offsets[:-1]).repeat(sizes)
        return Groups(self.members[np.arange(offsets[-1]) + shift], offsets)

    def shapes(self, lengths: Int64Array, vision: Int64Array | None = None) -> GroupShapes:
        """Shapes of the groups.

        Args:
            lengths: [samples] tokens, indexed by `members`.
            vision: [3, samples] patches, images and patch pairs, indexed likewise, if counted.
        """
        counted = None if vision is None else vision[:, self.members]
        return GroupShapes.measure(lengths[self.members], self.offsets, counted)
