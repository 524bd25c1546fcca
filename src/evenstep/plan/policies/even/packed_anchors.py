"""What packed groups should count, and the samples that they are made around.

A group is made around its *anchor*: the oldest sample, or one that must go now, or in a part for
dear samples one of those. The anchors of an update whose groups count together leave each other
enough: of samples that count 30, 70, 40 and 20, the oldest first, two groups that should count 100
together, and are left 20 at least, have the anchors 30 and 70; three have 30, 40 and 20.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.plan.policy import Window


@dataclass(frozen=True, kw_only=True)
class PackedParts:
    """What the groups of a round should count. A part is a step, or the steps of an update where
    ranks wait at its end: then the sum of its groups is what counts."""

    sizes: Int64Array
    """[parts] groups of each."""
    targets: Int64Array
    """[parts] what the groups of each should count together, largest first."""
    above: int
    """Samples that count more are dear."""
    dear: int
    """Parts that are for a dear sample: the first."""
    least: int
    """What each other group of a part should be left."""


@dataclass
class Anchors:
    """The samples that groups are made around."""

    times: Int64Array
    free: BoolArray
    """[window] whether a sample may be taken."""
    dear: list[int]
    """For the parts that are for one, the dearest first."""
    waiting: list[int]
    """Samples that have to go."""
    spare: list[int]
    """Dear samples that wait for those of other ranks, unless nothing else is there."""

    @classmethod
    def of(
        cls,
        times: Int64Array,
        window: Window,
        parts: PackedParts,
        by_length: Int64Array,
        *,
        max_wait: int,
    ) -> Anchors:
        free = np.ones(len(times), bool)
        due = window.ages >= max_wait
        dear = by_length[::-1][: np.count_nonzero(times > parts.above)]
        # Those that have to go, then the dearest.
        dear = dear[np.argsort(~due[dear], kind="stable")]
        taken, spare = dear[: parts.dear], dear[parts.dear :]
        free[dear] = False
        groups = int(parts.sizes.sum())
        waiting = np.flatnonzero(free & due)[: groups - len(taken)]
        free[waiting] = False
        taken = taken[np.argsort(-times[taken], kind="stable")]
        return cls(times, free, taken.tolist(), waiting.tolist(), spare.tolist())

    @property
    def reserved(self) -> int:
        return len(self.dear) + len(self.waiting) + len(self.spare)

    def take(self, size: int, target: int, least: int) -> list[int]:
        """The anchors of a part, the longest first: the oldest that leave the others enough."""
        chosen = [self.dear.pop(0)] if self.dear else []
        for others in reversed(range(size - len(chosen))):
            room = target - int(self.times[chosen].sum()) - others * least
            anchor = self._next(room if size > 1 else None)
            self.free[anchor] = False
            chosen.append(anchor)
        return sorted(chosen, key=lambda anchor: -int(self.times[anchor]))

    def _next(self, room: int | None) -> int:
        """The first that counts at most `room`, where that is given; the shortest if none does."""
        for place, anchor in enumerate(self.waiting):
            if room is None or self.times[anchor] <= room:
                return self.waiting.pop(place)
        free = np.flatnonzero(self.free)
        if not len(free):
            return (self.waiting or self.spare).pop(0)
        if room is None:
            return int(free[0])
        fitting = self.times[free] <= room
        return int(free[fitting.argmax() if fitting.any() else self.times[free].argmin()])
