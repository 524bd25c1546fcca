"""Groups of samples as two flat arrays, and the emission order of a round.

Invariant: `members` names every sample at most once, and no group is empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evenstep.cost import GroupShapes

__all__ = ["Groups", "generator"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Groups:
    """Group g holds ``members[offsets[g]:offsets[g + 1]]``."""

    members: Int64Array
    """[samples] positions in the window, or arrival numbers, as the owner of the object says."""
    offsets: Int64Array
    """[groups + 1] strictly increasing, from 0 to the number of samples."""

    @classmethod
    def empty(cls) -> Groups:
        return cls(np.empty(0, np.int64), np.zeros(1, np.int64))

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

    def shapes(self, lengths: Int64Array) -> GroupShapes:
        """Shapes of the groups, where `lengths` is indexed by `members`."""
        return GroupShapes.measure(lengths[self.members], self.offsets)


def generator(*key: int) -> np.random.Generator:
    """A random generator that is a function of `key` alone, on every machine."""
    return np.random.Generator(
        np.random.PCG64(np.random.SeedSequence([k & (2**64 - 1) for k in key]))
    )
