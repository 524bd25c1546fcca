"""Groups to ranks, one after the other: within nodes where possible, as exchange is faster there.

At the first rank of a node the largest group is next, and later in the node the largest that fits
in what is left of it; only if none does, a group reaches into the next node. Powers of two go from
the largest to the smallest, so that each begins at a multiple of its size.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from evenstep.arrays import Int64Array


def place_groups(sizes: Int64Array, node: int, descending: bool) -> Int64Array:
    """[groups] indices of the groups in the order of their ranks.

    Args:
        sizes: [groups] ranks of each.
        node: ranks of a node.
        descending: whether nodes do not count.
    """
    if descending:
        return (-sizes).argsort(kind="stable")
    left = {size: count for size, count in enumerate(np.bincount(sizes).tolist()) if count}
    placed: list[int] = []
    while left:
        # What follows up to the next node that begins with a group comes again as long as there
        # are as many groups of each size.
        row = _until_node(dict(left), node)
        used = {size: row.count(size) for size in set(row)}
        times = min(left[size] // count for size, count in used.items())
        placed += row * times
        for size, count in used.items():
            left[size] -= count * times
            if not left[size]:
                del left[size]
    order = np.empty(len(sizes), np.int64)
    # Of groups of one size the first in the list is the first to be placed.
    order[np.array(placed, np.int64).argsort(kind="stable")] = sizes.argsort(kind="stable")
    return order


def _until_node(left: dict[int, int], node: int) -> list[int]:
    """Sizes of the groups from the first rank of a node until one ends where a node does."""
    remaining, row, rank = sorted(left), [], 0
    while remaining and (not rank or rank % node):
        room = node - rank % node
        at = len(remaining) if room == node else bisect_right(remaining, room)
        size = remaining[max(at - 1, 0)]
        row.append(size)
        rank += size
        left[size] -= 1
        if not left[size]:
            remaining.remove(size)
    return row
