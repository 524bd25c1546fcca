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
    # Of groups of one size the first in the list is the first to be placed.
    ascending = np.lexsort((-np.arange(len(sizes)), sizes))
    if descending:
        return ascending[::-1]
    known, counts = np.unique(sizes, return_counts=True)
    left = dict(zip(known.tolist(), np.split(ascending, counts.cumsum()[:-1])))
    left = {size: groups.tolist() for size, groups in left.items()}
    remaining = known.tolist()
    order: list[int] = []
    rank = 0
    while len(remaining) > 1:
        room = node - rank % node
        at = len(remaining) if room == node else bisect_right(remaining, room)
        size = remaining[max(at - 1, 0)]
        order.append(left[size].pop())
        rank += size
        if not left[size]:
            remaining.remove(size)
    for size in remaining:
        order += left[size][::-1]
    return np.array(order, np.int64)
