"""Sequences to micro-batches whose rows are padded to the longest: sequences of like length meet.

Sequences are sorted by length and cut into runs. A run costs as much as its longest sequence times
its number of sequences, so runs of long sequences can only have few costs. But only micro-batches
that run at the same time have to cost the same. So each step, one micro-batch of every rank, has a
level, and a run takes the level that it comes closest to:

    lengths 9, 5, 5, 4, 4, 3, 3, 3; two ranks, two steps with the levels 10 and 9
    the first is closer to 9, the next two to 10, and so on: {9}, {5, 5}, {4, 4}, {3, 3, 3}

Levels fall evenly from the first to the last step. The lowest for which there are enough
micro-batches are found by bisection.
"""

from __future__ import annotations

import math

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.plan.partition.items import largest_first

_LAST = (0.85, 0.65)
"""The level of the last step over that of the first: those that are tried."""
_BISECTIONS = 8
_PLACES = 1024
"""Places in the order of length at which runs are compared with levels. Of more sequences, those
between two places are taken to be as long as the one before them."""


def padded_bins(
    lengths: Int64Array, cost: Cost, ranks: int, micro_batches: int, max_tokens: int
) -> Int64Array | None:
    """Places sequences in ``ranks * micro_batches`` bins.

    Args:
        lengths: [sequences] tokens of each, none above `max_tokens`.
        max_tokens: tokens of a bin with its padding, at most.

    Returns:
        [sequences] the bin of each; None where they do not fit.
    """
    order = largest_first(lengths)
    runs = _Runs(lengths[order], cost, ranks, max_tokens)
    best: Int64Array | None = None
    least = np.inf
    # A single rank waits for no other: one will do.
    for last in _LAST if ranks > 1 else _LAST[:1]:
        found = runs.cut_lowest(np.linspace(1, last, micro_batches))
        if found is not None and (time := runs.time(found)) < least:
            best, least = found, time
    if best is None:
        return None
    bin_of = np.empty(len(lengths), np.int64)
    bin_of[order] = np.arange(len(best)).repeat(np.diff(best, append=len(lengths)))
    return bin_of


class _Runs:
    """Runs of sequences in order of length, the longest first."""

    def __init__(self, descending: Int64Array, cost: Cost, ranks: int, max_tokens: int) -> None:
        one, two = (
            cost(GroupShapes.of_equals(samples, descending), packed=False) for samples in (1, 2)
        )
        # A run costs its rows, and something by itself.
        self._row, self._fixed, self._one = two - one, 2 * one - two, one
        self._room = max_tokens // descending
        # `fsum` does not depend on the order of additions, so all machines find the same levels.
        self._mean = math.fsum(self._row) / ranks
        self._ranks = ranks
        self._apart = max(1, len(descending) // _PLACES)

    def time(self, starts: Int64Array) -> float:
        """Of all steps, when each lasts as long as its costliest run."""
        sizes = np.diff(starts, append=len(self._row))
        costs = self._fixed[starts] + self._row[starts] * sizes
        return math.fsum(np.sort(costs)[::-1][:: self._ranks])

    def cut_lowest(self, shape: Float64Array) -> Int64Array | None:
        """[runs] where each begins, for the lowest levels that suffice; None where none do.

        Args:
            shape: [steps] the level of each step over that of the first.
        """
        # A sequence that is alone in any case needs a level as high as its cost.
        alone = np.where(self._room == 1, self._one, 0)[:: self._ranks][: len(shape)]
        floor = np.append(alone, np.zeros(len(shape) - len(alone)))
        floor[0] = self._one[0]
        low = 0.9 * self._mean / math.fsum(shape)
        high = float((self._fixed + self._row * self._room).max()) / float(shape[-1])
        found = self._cut(np.maximum(high * shape, floor))
        for _ in range(_BISECTIONS if found is not None else 0):
            middle = (low + high) / 2
            tried = self._cut(np.maximum(middle * shape, floor))
            if tried is None:
                low = middle
            else:
                high, found = middle, tried
        return found

    def _cut(self, levels: Float64Array) -> Int64Array | None:
        """[runs] where each begins, no more than `ranks` at each level; None where they are too
        few."""
        count, apart = len(self._row), self._apart
        row, fixed, room = (each[::apart] for each in (self._row, self._fixed, self._room))
        with np.errstate(divide="ignore", invalid="ignore"):
            within = np.where(row > 0, (levels[:, None] - fixed) / row, np.inf)
        sizes = np.minimum(within, room).astype(np.int64)  # [levels, places]
        unused = 1 - (fixed + row * sizes) / levels[:, None]
        unused[sizes < 1] = np.inf
        place = np.arange(len(row))
        left = [self._ranks] * len(levels)
        starts: list[int] = []
        start = 0
        while start < count:
            closest = unused.argmin(axis=0)
            size = np.where(unused[closest, place] < np.inf, sizes[closest, place], 0).tolist()
            chosen = closest.tolist()
            while start < count:
                at = start // apart
                if not size[at]:
                    return None
                starts.append(start)
                start += size[at]
                left[chosen[at]] -= 1
                if not left[chosen[at]]:  # no more runs may take this level
                    unused[chosen[at]] = np.inf
                    break
        return np.array(starts)
