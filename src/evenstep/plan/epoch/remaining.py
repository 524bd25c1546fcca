"""What one rank has still to receive of its share.

A *place* names a sample of a rank's share of the epoch: its position in the order in which the rank
would receive it. An *arrival number* counts what is received. The two are the same until an epoch
is gone on with after a change, such as that of the buffer size: then what is left is numbered anew.
A share is a `Stream` of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.epoch.stream import Progress, Stream

__all__ = ["UNSIZED", "Remaining"]


UNSIZED = 1 << 62
"""Total of a share whose size is not known."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """Some early places by name, and then all from one place on."""

    numbers: Int64Array
    """[samples] arrival numbers of `places`."""
    places: Int64Array
    """[samples] increasing, and below `place`."""
    number: int
    """The arrival number that `place` has; those after it follow."""
    place: int

    @classmethod
    def of(cls, share: Stream, progress: Progress) -> Remaining:
        """What is left of `share` when the rank has come as far as `progress` says."""
        late = np.arange(progress.taken, len(share.leftover), dtype=np.int64)
        numbers = np.concatenate([progress.unfinished, late])
        number = max(progress.taken, len(share.leftover))
        return cls(
            numbers=numbers,
            places=share.positions(numbers),
            number=number,
            place=share.tail + number - len(share.leftover),
        )

    @classmethod
    def everything(cls) -> Remaining:
        none = np.empty(0, np.int64)
        return cls(numbers=none, places=none, number=0, place=0)

    def place_of(self, number: int) -> int:
        """The place of an arrival number that remains."""
        if number >= self.number:
            return number - self.number + self.place
        return int(self.places[np.searchsorted(self.numbers, number)])

    def select(self, begin: int, count: int) -> tuple[Int64Array, Int64Array]:
        """Which of the places from `begin` on remain.

        Returns:
            Their positions among the `count` places, and their arrival numbers.
        """
        low, high = np.searchsorted(self.places, [begin, begin + count])
        later = np.arange(max(begin, self.place), max(begin + count, self.place))
        return (
            np.concatenate([self.places[low:high], later]) - begin,
            np.concatenate([self.numbers[low:high], later - self.place + self.number]),
        )
