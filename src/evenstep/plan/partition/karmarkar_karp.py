"""Karmarkar-Karp: partitions are merged, those that are least even first, until one is left.

Each item begins as a partial partition with one loaded bin. The two with the largest difference
between their most and their least loaded bin are merged, the most loaded bin of one with the least
loaded of the other, and so on. Costs 8, 7, 6, 5, 4 in two bins, where greedy placement gives 17:

    {8}    {} and {7} {}     {8}    {7}      difference 1
    {6}    {} and {5} {}     {6}    {5}      difference 1
    {8}   {7} and {4} {}     {7, 4} {8}      difference 3
    {7, 4} {8} and {6} {5}   {7, 4, 5} {8, 6}: loads 16 and 14

Two things keep that fast: bins without items are not stored, so a single item takes one entry, and
the items of a bin are a chain, so that joining two takes no time.

Among equal differences the partition made first comes first, and among equal loads the bin whose
first item does.
"""

from __future__ import annotations

from bisect import insort
from heapq import heapify, heappop, heapreplace

import numpy as np

from evenstep.arrays import Int64Array

Bins = list[tuple[int, int, int]]
"""Bins that hold items, most loaded first: minus the load, and the first and the last item."""

_FEW = 16
"""One entry in this many is inserted where it belongs; of more, all are sorted."""


def karmarkar_karp(
    costs: Int64Array,
    bins: int,
    order: Int64Array,
    *,
    ends: Int64Array | None = None,
) -> Int64Array:
    """
    Args:
        costs: [items] not negative.
        bins: number of bins.
        order: [items] positions, costliest first, group after group.
        ends: [groups] position in `order` at which each group ends; each is divided among as many
            bins by itself. None is one group.

    Returns:
        [items] the bin of each, from 0 in each group; its bins are in order of load, largest first.
    """
    cuts = np.array([len(order)]) if ends is None else ends
    bin_of = np.empty(len(costs), np.int64)
    for group in np.split(order, cuts[:-1]):
        if len(group):
            _divide(costs[group].tolist(), group.tolist(), bins, bin_of)
    return bin_of


def _divide(costs: list[int], items: list[int], bins: int, bin_of: Int64Array) -> None:
    """Writes the bin of each item to `bin_of`."""
    parts: dict[int, Bins] = {
        number: [(-cost, item, item)] for number, (cost, item) in enumerate(zip(costs, items))
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
    least = part[-1][0] if len(part) == bins else 0  # minus the load
    return least - part[0][0]


def _merge(first: Bins, second: Bins, bins: int, after: dict[int, int]) -> Bins:
    """Both as one; uses up the lists."""
    if len(first) < len(second):
        first, second = second, first
    fresh = second
    # Bins beyond `bins` are joined: of the least loaded of each, the most loaded with the least.
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
