"""Documents to micro-batches, one after the other, each to the one of least cost that has room.

From the most costly to the least, this is LPT scheduling under a token cap: short documents come
last and balance what longer ones left uneven. Invariant: no micro-batch exceeds the cap.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace

import numpy as np

from evenstep.arrays import Int64Array


def lpt_fill(
    lengths: Int64Array, costs: Int64Array, order: Int64Array, micro_batches: int, max_tokens: int
) -> Int64Array:
    """Places documents in the given order. A document that finds no room is left out, and others
    after it may still find some.

    Args:
        lengths: [documents] tokens.
        costs: [documents] cost of each.
        order: positions of the documents to place, in the order in which they are placed.
        micro_batches: number of micro-batches, at least 1.
        max_tokens: tokens that a micro-batch holds at most.

    Returns:
        [documents] int64 micro-batch of each document; -1 for one that is not in `order` or found
        no room. Ties go to the lowest number.
    """
    count = micro_batches
    placed = [-1] * len(lengths)
    tokens, loads = [0] * count, [0] * count
    # A micro-batch is one integer in a heap, load x count + number: the smallest is the one of
    # least load, and the first of those. Those that lacked room wait in a second heap by their
    # tokens, the one with the most room first.
    open_heap = list(range(count))
    full_heap: list[int] = []
    for position, size, cost in zip(order.tolist(), lengths[order].tolist(), costs[order].tolist()):
        limit = max_tokens - size
        while full_heap and full_heap[0] // count <= limit:
            number = heappop(full_heap) % count
            heappush(open_heap, loads[number] * count + number)
        while open_heap:
            number = open_heap[0] % count
            if tokens[number] <= limit:
                tokens[number] += size
                loads[number] += cost
                placed[position] = number
                heapreplace(open_heap, loads[number] * count + number)
                break
            heappop(open_heap)
            heappush(full_heap, tokens[number] * count + number)
    return np.array(placed, np.int64)
