"""Karmarkar-Karp: partitions are merged, those that are least even first, until one is left.

Each partial partition has a load for each bin. The two with the largest difference between their
heaviest and their lightest bin are merged, the heaviest bin of one with the lightest of the other,
and so on. Two things keep that fast: bins without items are not stored, so a single item takes one
entry, and the items of a bin are a chain, so that joining two takes no time.

Of equal differences the partition that was made first comes first, and of equal loads the bin whose
first item does. That decides everything, so the two writings, here with plain lists and in
`evenstep.plan.partition.karmarkar_karp_numba` for numba, have the same outcome.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heapreplace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.karmarkar_karp_numba import compiled

__all__ = ["karmarkar_karp"]

Bins = list[tuple[int, int, int]]
"""Those that hold items, heaviest first: minus the load, and the first and the last item."""

_COMPILE_FROM = 1 << 16
"""Items from which on numba is used where it is installed: it saves a second for 100,000."""
_FEW = 16
"""One entry in this many is inserted where it belongs; of more, all are sorted."""


def karmarkar_karp(
    weights: Int64Array,
    bins: int,
    order: Int64Array,
    *,
    ends: Int64Array | None = None,
    fast: bool = False,
) -> Int64Array:
    """
    Args:
        weights: [items] not negative.
        bins: number of bins.
        order: [items] positions, heaviest first; of several groups one after the other.
        ends: [groups] of `order`, where each group ends that is divided among bins of its own; None
            is one group.
        fast: whether numba may do it: compiling pays for itself.

    Returns:
        [items] the bin of each, bins of a group from the heaviest to the lightest.
    """
    cuts = np.array([len(order)]) if ends is None else ends
    make = compiled() if fast or len(weights) >= _COMPILE_FROM else None
    if make is not None:
        return make(weights, bins, order, cuts)
    bin_of = np.empty(len(weights), np.int64)
    for group in np.split(order, cuts[:-1]):
        if len(group):
            _divide(weights[group].tolist(), group.tolist(), bins, bin_of)
    return bin_of


def _divide(weights: list[int], items: list[int], bins: int, bin_of: Int64Array) -> None:
    """Writes down the bin of each item."""
    parts: dict[int, Bins] = {
        number: [(-weight, item, item)] for number, (weight, item) in enumerate(zip(weights, items))
    }
    # Least even first; of equals the one that was made first.
    queue = [(-_difference(part, bins), number) for number, part in parts.items()]
    heapify(queue)
    after: dict[int, int] = {}  # the next item in the chain
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
            item = after.get(item, -1)


def _difference(part: Bins, bins: int) -> int:
    lightest = part[-1][0] if len(part) == bins else 0
    return lightest - part[0][0]


def _merge(first: Bins, second: Bins, bins: int, after: dict[int, int]) -> Bins:
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
