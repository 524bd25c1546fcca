"""Karmarkar-Karp for numba: what `karmarkar_karp` does, many times as fast.

All lists are chains in arrays. A bin is named by its first item. Three columns by bin and two by
item, and three by partial partition, hold the bins {8} {7, 4} of the items 0, 1 and 2 like this:

    chains   after   next item of the same bin    after[1] = 2, else -1
             tail    last item of the bin         tail[0] = 0, tail[1] = 2
             above   next more loaded bin         above[0] = 1, above[1] = -1
             below   next less loaded bin         below[1] = 0, below[0] = -1
             bin     number of the bin, at last
    parts    top     most loaded bin              1: 7 + 4 = 11
             bottom  least loaded bin             0: 8
             held    bins that hold items         2

Partial partitions lie in a heap, the least even on top. To import numba and compile takes some
seconds in each process, so small inputs never do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array

# Rows of the arrays of the docstring; constants to numba.
_AFTER, _TAIL, _ABOVE, _BELOW, _BIN = range(5)
_TOP, _BOTTOM, _HELD = range(3)


@cache
def compiled() -> Callable[[Int64Array, int, Int64Array, Int64Array], Int64Array] | None:
    """Costs, bins, order and ends as of `karmarkar_karp`; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    jit = numba.njit(nogil=True)
    precedes = jit(_precedes)
    # Inlined by numba, as calls with arrays take longer than what these do.
    inline = numba.njit(nogil=True, inline="always")
    join, insert = inline(_joiner(precedes)), inline(_inserter(precedes, inline(_link)))
    fill = jit(_divider(jit(_merger(join, insert)), jit(_sink)))

    def divide(costs: Int64Array, bins: int, order: Int64Array, ends: Int64Array) -> Int64Array:
        count = len(costs)
        # Arrays are made here, as it takes numba long to compile that.
        chains = np.full((5, count), -1, np.int64)
        parts = np.empty((3, count), np.int64)
        heap = np.empty((3, count), np.int64)  # difference, number and partition
        fresh = np.empty(bins, np.int64)
        loads, begin = costs.copy(), 0
        for end in ends.tolist():
            if end > begin:
                fill(order[begin:end], bins, loads, chains, parts, heap, fresh)
            begin = end
        bin_of: Int64Array = chains[_BIN]
        return bin_of

    return divide


def _precedes(one: Any, other: Any, loads: Any) -> Any:
    """Whether one bin comes before another: more loaded, or as loaded with an earlier item."""
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


def _merger(join: Callable[..., Any], insert: Callable[..., Any]) -> Callable[..., Any]:
    def merge(
        first: Any, second: Any, bins: Any, loads: Any, chains: Any, parts: Any, fresh: Any
    ) -> Any:
        """Merges two partial partitions into the one with more bins, and returns which that is."""
        if parts[_HELD, first] < parts[_HELD, second]:
            first, second = second, first
        joined = max(parts[_HELD, first] + parts[_HELD, second] - bins, 0)
        count = join(first, second, joined, loads, chains, parts, fresh)
        insert(first, count, joined, loads, chains, parts, fresh)
        parts[_HELD, first] += count - joined
        return first

    return merge


def _joiner(precedes: Callable[..., Any]) -> Callable[..., Any]:
    def join(
        first: Any, second: Any, joined: Any, loads: Any, chains: Any, parts: Any, fresh: Any
    ) -> Any:
        """Collects the bins of `second` in `fresh`, most loaded first, and returns how many.

        The top ones stay as they are. The others, from the more loaded to the less, are joined with
        the `joined` bins at the bottom of `first`, from the less loaded to the more, which leave
        its chain.
        """
        theirs, count = parts[_TOP, second], 0
        while count < parts[_HELD, second] - joined:
            fresh[count] = theirs
            theirs = chains[_BELOW, theirs]
            count += 1
        mine = parts[_BOTTOM, first]
        for _ in range(joined):
            chains[_AFTER, chains[_TAIL, mine]] = theirs
            chains[_TAIL, mine] = chains[_TAIL, theirs]
            loads[mine] += loads[theirs]
            at = count
            while at > 0 and precedes(mine, fresh[at - 1], loads):
                fresh[at] = fresh[at - 1]
                at -= 1
            fresh[at] = mine
            count += 1
            mine, theirs = chains[_ABOVE, mine], chains[_BELOW, theirs]
        parts[_BOTTOM, first] = mine
        if mine >= 0:
            chains[_BELOW, mine] = -1
        else:
            parts[_TOP, first] = -1
        return count

    return join


def _inserter(precedes: Callable[..., Any], link: Callable[..., None]) -> Callable[..., None]:
    def insert(
        part: Any, count: Any, joined: Any, loads: Any, chains: Any, parts: Any, fresh: Any
    ) -> None:
        """Puts the bins of `fresh` where they belong in the chain of `part`: sought from the top
        where bins were joined, as joined bins have large loads, else from the bottom."""
        if joined > 0:
            over, under = -1, parts[_TOP, part]
            for k in range(count):
                while under >= 0 and precedes(under, fresh[k], loads):
                    over, under = under, chains[_BELOW, under]
                link(part, fresh[k], over, under, chains, parts)
                over = fresh[k]
            return
        over, under = parts[_BOTTOM, part], -1
        for k in range(count - 1, -1, -1):
            while over >= 0 and precedes(fresh[k], over, loads):
                over, under = chains[_ABOVE, over], over
            link(part, fresh[k], over, under, chains, parts)
            under = fresh[k]

    return insert


def _link(part: Any, entry: Any, over: Any, under: Any, chains: Any, parts: Any) -> None:
    """Puts a bin between two neighbours in the chain of `part`; -1 is none."""
    chains[_ABOVE, entry], chains[_BELOW, entry] = over, under
    if under >= 0:
        chains[_ABOVE, under] = entry
    else:
        parts[_BOTTOM, part] = entry
    if over >= 0:
        chains[_BELOW, over] = entry
    else:
        parts[_TOP, part] = entry


def _divider(merge: Callable[..., Any], sink: Callable[..., None]) -> Callable[..., None]:
    def divide(
        order: Any, bins: Any, loads: Any, chains: Any, parts: Any, heap: Any, fresh: Any
    ) -> None:
        size = made = len(order)
        for k in range(size):
            item = order[k]
            chains[_TAIL, item] = item
            parts[_TOP, k], parts[_BOTTOM, k], parts[_HELD, k] = item, item, 1
            # A single item is in one bin, and all others are empty.
            heap[0, k], heap[1, k], heap[2, k] = loads[item] if bins > 1 else 0, k, k
        while size > 1:
            first = heap[2, 0]
            size -= 1
            heap[0, 0], heap[1, 0], heap[2, 0] = heap[0, size], heap[1, size], heap[2, size]
            sink(heap, size)
            part = merge(first, heap[2, 0], bins, loads, chains, parts, fresh)
            difference = loads[parts[_TOP, part]]
            if parts[_HELD, part] == bins:
                difference -= loads[parts[_BOTTOM, part]]
            heap[0, 0], heap[1, 0], heap[2, 0] = difference, made, part
            sink(heap, size)
            made += 1
        entry, b = parts[_TOP, heap[2, 0]], 0
        while entry >= 0:
            item = entry
            while item >= 0:
                chains[_BIN, item] = b
                item = chains[_AFTER, item]
            entry = chains[_BELOW, entry]
            b += 1

    return divide
