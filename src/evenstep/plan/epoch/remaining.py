"""What one rank has still to receive of its share.

A *place* names a sample of a rank's share of the epoch: its position in the order in which the rank
would receive it. An *arrival number* counts received samples. The two are the same until an epoch
is resumed after a change, such as of the buffer size: then arrival numbers start from 0 again, for
the places that are left. A share is a `Stream` of places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.epoch.stream import Progress, Stream

UNSIZED = 1 << 62
"""Total of a share of unknown size."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """Some early places one by one, and then all from one place on."""

    numbers: Int64Array
    """[samples] arrival numbers of `places`."""
    places: Int64Array
    """[samples] increasing, and below `place`."""
    number: int
    """Arrival number of `place`; those of later places follow."""
    place: int

    @classmethod
    def of(cls, share: Stream, progress: Progress) -> Remaining:
        """The rest of `share` after the rank's progress."""
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
        """The places that remain among the `count` places from `begin` on.

        Returns:
            Their positions among these `count` places, and their arrival numbers.
        """
        low, high = np.searchsorted(self.places, [begin, begin + count])
        later = np.arange(max(begin, self.place), max(begin + count, self.place))
        return (
            np.concatenate([self.places[low:high], later]) - begin,
            np.concatenate([self.numbers[low:high], later - self.place + self.number]),
        )
