"""Karmarkar-Karp: partitions are merged, those that are least even first, until one is left.

Each partial partition has a load for each bin. The two with the largest difference between their
heaviest and their lightest bin are merged, the heaviest bin of one with the lightest of the other,
and so on. Two things keep that fast: bins without items are not stored, so a single item takes one
entry, and the items of a bin are a chain, so that joining two takes no time.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heapreplace

import numpy as np
import numpy.typing as npt

__all__ = ["karmarkar_karp"]

Int64Array = npt.NDArray[np.int64]
Bins = list[tuple[int, int, int]]
"""Those that hold items, heaviest first: minus the load, and the first and the last item."""

_FEW = 16
"""One entry in this many is inserted where it belongs; of more, all are sorted."""


def karmarkar_karp(weights: Int64Array, bins: int, order: Int64Array) -> Int64Array:
    """
    Args:
        weights: [items] not negative.
        bins: number of bins.
        order: [items] positions, heaviest first.

    Returns:
        [items] the bin of each, bins from the heaviest to the lightest.
    """
    bin_of = np.empty(len(weights), np.int64)
    if not len(weights):
        return bin_of
    parts: dict[int, Bins] = {
        number: [(-weight, item, item)]
        for number, (weight, item) in enumerate(zip(weights[order].tolist(), order.tolist()))
    }
    # Least even first; of equals the one that was made first.
    queue = [(-_difference(part, bins), number) for number, part in parts.items()]
    heapify(queue)
    after = [-1] * len(weights)  # the next item in the chain
    made = len(parts)
    while len(queue) > 1:
        first = parts.pop(heappop(queue)[1])
        second = parts.pop(queue[0][1])
        merged = _merge(first, second, bins, after)
        parts[made] = merged
        heapreplace(queue, (-_difference(merged, bins), made))
        made += 1
    (last,) = parts.values()
    for b, (_, item, _) in enumerate(last):
        while item >= 0:
            bin_of[item] = b
            item = after[item]
    return bin_of


def _difference(part: Bins, bins: int) -> int:
    lightest = part[-1][0] if len(part) == bins else 0
    return lightest - part[0][0]


def _merge(first: Bins, second: Bins, bins: int, after: list[int]) -> Bins:
    """Uses up both."""
    if len(first) < len(second):
        first, second = second, first
    fresh = second
    # The lightest bins of each are joined, the heaviest of them with the lightest of the other.
    joined = len(first) + len(second) - bins
    if joined > 0:
        fresh = second[:-joined]
        for (load, head, tail), (more, next_head, last) in zip(first[-joined:], second[::-1]):
            after[tail] = next_head
            fresh.append((load + more, head, last))
        del first[-joined:]
    if len(fresh) * _FEW <= len(first):
        for entry in fresh:
            insort(first, entry)
    else:
        first += fresh
        first.sort()
    return first
