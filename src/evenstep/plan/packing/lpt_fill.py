"""Documents to micro-batches, one after the other, each to the one with least work that has room.

Taken from the most work to the least, this is LPT scheduling under a token cap: as short documents
come last, they level out what longer ones left uneven. Invariant: no micro-batch exceeds the cap.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np

from evenstep.arrays import Int64Array

__all__ = ["level_fill"]


def level_fill(
    lengths: Int64Array, works: Int64Array, order: Int64Array, bins: int, max_tokens: int
) -> Int64Array:
    """
    Args:
        lengths: [documents] tokens.
        works: [documents] work of each.
        order: positions of the documents to place, in the order in which they are placed.
        bins: micro-batches to fill, at least 1.
        max_tokens: tokens that a micro-batch holds at most.

    Returns:
        [documents] int64 micro-batch of each document; -1 for one that is not in `order` or found
        no room. Ties go to the micro-batch with the lowest number.
    """
    placed = [-1] * len(lengths)
    used = [0] * bins
    levels = [0] * bins
    # A micro-batch is one integer in a heap, its work x bins + its number: the smallest is the one
    # with least work, and of those the first. Those that lacked room wait in a second heap, the one
    # with the most room first.
    open_bins = list(range(bins))
    short_bins: list[int] = []
    for position, size, work in zip(order.tolist(), lengths[order].tolist(), works[order].tolist()):
        limit = max_tokens - size
        while short_bins and short_bins[0] // bins <= limit:
            number = heappop(short_bins) % bins
            heappush(open_bins, levels[number] * bins + number)
        while open_bins:
            number = open_bins[0] % bins
            if used[number] <= limit:
                used[number] += size
                levels[number] += work
                placed[position] = number
                heapreplace(open_bins, levels[number] * bins + number)
                break
            heappop(open_bins)
            heappush(short_bins, used[number] * bins + number)
    return np.array(placed, np.int64)
