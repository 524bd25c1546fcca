"""Karmarkar-Karp for numba: what `karmarkar_karp` does, many times as fast.

Bins that hold items are known by their first item, and those of a partial partition form a chain
from the heaviest to the lightest. Partial partitions lie in a heap, the least even on top. To
import numba and compile takes some seconds in each process, so small inputs never do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array

__all__ = ["compiled"]


@cache
def compiled() -> Callable[[Int64Array, int, Int64Array, Int64Array], Int64Array] | None:
    """Weights, bins, order and ends as of `karmarkar_karp`; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    jit = numba.njit(nogil=True)
    heavier, sink = jit(_heavier), jit(_sink)
    divide = jit(_divider(jit(_merger(heavier)), sink))

    def make(weights: Int64Array, bins: int, order: Int64Array, ends: Int64Array) -> Int64Array:
        count = len(weights)
        # Arrays are made here, as it takes numba long to compile that. By item:
        chains = np.full((5, count), -1, np.int64)  # after, tail, above, below, bin
        parts = np.empty((3, count), np.int64)  # by partition: its heaviest bin, lightest, bins
        heap = np.empty((3, count), np.int64)  # difference, number and partition
        fresh = np.empty(bins, np.int64)
        loads, begin = weights.copy(), 0
        for end in ends.tolist():
            if end > begin:
                divide(order[begin:end], bins, loads, chains, parts, heap, fresh)
            begin = end
        bin_of: Int64Array = chains[4]
        return bin_of

    return make


def _heavier(one: Any, other: Any, loads: Any) -> Any:
    return loads[one] > loads[other] or (loads[one] == loads[other] and one < other)


def _sink(heap: Any, size: Any) -> None:
    """Puts what is on top of the heap where it belongs."""
    difference, number, part = heap[0, 0], heap[1, 0], heap[2, 0]
    node, child = 0, 1
    while child < size:
        right = child + 1
        if right < size and (
            heap[0, right] > heap[0, child]
            or (heap[0, right] == heap[0, child] and heap[1, right] < heap[1, child])
        ):
            child = right
        if heap[0, child] < difference or (
            heap[0, child] == difference and heap[1, child] > number
        ):
            break
        heap[0, node], heap[1, node], heap[2, node] = heap[0, child], heap[1, child], heap[2, child]
        node, child = child, 2 * child + 1
    heap[0, node], heap[1, node], heap[2, node] = difference, number, part


def _merger(heavier: Callable[..., Any]) -> Callable[..., Any]:
    def merge(
        first: Any, second: Any, bins: Any, loads: Any, chains: Any, parts: Any, fresh: Any
    ) -> Any:
        after, tail, above, below = chains[0], chains[1], chains[2], chains[3]
        heaviest, lightest, held = parts[0], parts[1], parts[2]
        if held[first] < held[second]:
            first, second = second, first
        joined = max(held[first] + held[second] - bins, 0)
        # Of the second the heaviest bins stay as they are, and the others, from the heaviest on,
        # are joined with the lightest of the first.
        entry, count = heaviest[second], 0
        while count < held[second] - joined:
            fresh[count] = entry
            entry = below[entry]
            count += 1
        mine = lightest[first]
        for _ in range(joined):
            after[tail[mine]] = entry
            tail[mine] = tail[entry]
            loads[mine] += loads[entry]
            at = count
            while at > 0 and heavier(mine, fresh[at - 1], loads):
                fresh[at] = fresh[at - 1]
                at -= 1
            fresh[at] = mine
            count += 1
            mine, entry = above[mine], below[entry]
        lightest[first] = mine
        if mine >= 0:
            below[mine] = -1
        else:
            heaviest[first] = -1
        # Bins that were joined are mostly heavy now, and others light: sought from that end on.
        over = -1 if joined > 0 else mine
        for k in range(count):
            entry = fresh[k] if joined > 0 else fresh[count - 1 - k]
            if joined > 0:
                under = below[over] if over >= 0 else heaviest[first]
                while under >= 0 and heavier(under, entry, loads):
                    over, under = under, below[under]
            else:
                while over >= 0 and heavier(entry, over, loads):
                    over = above[over]
                under = below[over] if over >= 0 else heaviest[first]
            above[entry], below[entry] = over, under
            if under >= 0:
                above[under] = entry
            else:
                lightest[first] = entry
            if over >= 0:
                below[over] = entry
            else:
                heaviest[first] = entry
            if joined > 0:
                over = entry
        held[first] += count - joined
        return first

    return merge


def _divider(merge: Callable[..., Any], sink: Callable[..., None]) -> Callable[..., None]:
    def divide(
        order: Any, bins: Any, loads: Any, chains: Any, parts: Any, heap: Any, fresh: Any
    ) -> None:
        after, tail, below, bin_of = chains[0], chains[1], chains[3], chains[4]
        size = made = len(order)
        for k in range(size):
            item = order[k]
            tail[item] = item
            parts[0, k], parts[1, k], parts[2, k] = item, item, 1
            # A single item is in one bin, and all others are empty.
            heap[0, k], heap[1, k], heap[2, k] = loads[item] if bins > 1 else 0, k, k
        while size > 1:
            first = heap[2, 0]
            size -= 1
            heap[0, 0], heap[1, 0], heap[2, 0] = heap[0, size], heap[1, size], heap[2, size]
            sink(heap, size)
            part = merge(first, heap[2, 0], bins, loads, chains, parts, fresh)
            difference = loads[parts[0, part]]
            if parts[2, part] == bins:
                difference -= loads[parts[1, part]]
            heap[0, 0], heap[1, 0], heap[2, 0] = difference, made, part
            sink(heap, size)
            made += 1
        entry, b = parts[0, heap[2, 0]], 0
        while entry >= 0:
            item = entry
            while item >= 0:
                bin_of[item] = b
                item = after[item]
            entry = below[entry]
            b += 1

    return divide
