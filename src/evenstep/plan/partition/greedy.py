"""Each item, in the order given, to the least loaded bin that has room: the core of LPT.

Invariant: no bin ever holds more than `cap` tokens or more items than it may. Of equally loaded
bins the first is taken, so the outcome is one, however it is computed; items from the heaviest to
the lightest make it LPT (longest processing time first).

This is written twice, and both give the same bins: with heaps of plain lists, and for numba, five
times as fast. To import numba and compile takes a second or two in each process, so small inputs
never do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from heapq import heappop, heappush, heapreplace
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array

__all__ = ["compiled", "heaviest_first", "place", "tree_of", "update"]


_COMPILE_FROM = 1 << 16
"""Items from which on numba is used, as for best-fit packing: it saves some 50 ms for 100,000."""
_REOPENED = 4
"""Bins that lacked room for an earlier item and are considered again for the next."""


def heaviest_first(weights: Int64Array) -> Int64Array:
    """[items] positions sorted by weight, heaviest first, ties by position."""
    order = np.argsort(-weights)
    descending = weights[order]
    # Fast sorting leaves equal weights in any order: number them alike, and sort by position.
    keys = np.append(0, (descending[1:] != descending[:-1]).cumsum()) if len(weights) else order
    keys = (keys << 32) + order
    keys.sort()
    return keys & 0xFFFFFFFF


def place(
    weights: Int64Array,
    bins: int,
    order: Int64Array,
    *,
    tokens: Int64Array | None = None,
    cap: int | None = None,
    equal_counts: bool = False,
) -> Int64Array | None:
    """
    Args:
        weights: [items] not negative, with a sum below 2**62.
        bins: number of bins.
        order: [items] positions in the order in which they are placed.
        tokens: [items] tokens of each item, none above `cap`; needed with it.
        cap: tokens that a bin holds.
        equal_counts: whether bins hold equally many items, up to one.

    Returns:
        [items] the bin of each; None where an item was left that no bin had room for.
    """
    values = weights[order]
    found: list[int] | Int64Array
    placed = np.empty(len(weights), np.int64)
    make = compiled() if len(weights) >= _COMPILE_FROM else None
    if make is None and cap is None and not equal_counts:
        placed[order] = _place(values.tolist(), bins)
        return placed
    most, extra = divmod(len(weights), bins) if equal_counts else (len(weights), 0)
    sizes = np.zeros(len(weights), np.int64) if tokens is None or cap is None else tokens[order]
    rest = (bins, cap or 0, most, extra)
    if make is None:
        found = _place_limited(values.tolist(), sizes.tolist(), *rest)
    else:
        found = make(values, sizes, *rest)
    if len(found) < len(weights):
        return None
    placed[order] = found
    return placed


@cache
def compiled() -> Callable[..., Int64Array] | None:
    """`_place_limited` for numba, compiled at its first call; None where that is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # Not cached on disk: where the package lies may be read-only, or shared with other machines.
    fill = numba.njit(nogil=True)(_filler(numba.njit(nogil=True)(update)))

    def make(
        weights: Int64Array, tokens: Int64Array, bins: int, cap: int, most: int, extra: int
    ) -> Int64Array:
        open_bins = tree_of(bins)
        short_bins = np.full_like(open_bins, -1)
        placed = np.empty(len(weights), np.int64)
        # Arrays are made here, as it takes numba long to compile that.
        loads, used, counts = np.zeros((3, bins), np.int64)
        count = fill(
            *(weights, tokens, placed, open_bins, short_bins, loads, used, counts),
            *(cap, most, extra, _REOPENED),
        )
        return placed[:count]

    return make


def _place(weights: list[int], bins: int) -> list[int]:
    # What `_place_limited` does without limits, in half the time.
    open_bins = list(range(bins))
    placed = []
    for weight in weights:
        key = open_bins[0]
        placed.append(key % bins)
        heapreplace(open_bins, key + weight * bins)
    return placed


def _place_limited(
    weights: list[int], tokens: list[int], bins: int, cap: int, most: int, extra: int
) -> list[int]:
    # `most` items in each bin, and one more in `extra` of them. Bins without room for an item wait
    # in `short_bins`, the one with the most room first. Only a few of them are reopened for each
    # item, or long and short ones in turn would each time move all bins there and back.
    open_bins = list(range(bins))
    short_bins: list[int] = []
    used, counts, loads = [0] * bins, [0] * bins, [0] * bins
    placed: list[int] = []
    for weight, size in zip(weights, tokens):
        for _ in range(_REOPENED):
            if not short_bins or short_bins[0] // bins + size > cap:
                break
            b = heappop(short_bins) % bins
            heappush(open_bins, loads[b] * bins + b)
        while open_bins:
            b = open_bins[0] % bins
            if counts[b] > most or (counts[b] == most and not extra):
                heappop(open_bins)  # for good
            elif used[b] + size > cap:
                heappop(open_bins)
                heappush(short_bins, used[b] * bins + b)
            else:
                break
        else:
            break
        extra -= counts[b] == most
        placed.append(b)
        counts[b] += 1
        used[b] += size
        loads[b] += weight
        heapreplace(open_bins, loads[b] * bins + b)
    return placed


def tree_of(bins: int) -> Int64Array:
    """A tree over bins that all have the load 0, for `update`.

    Node 1 is the root, node n has the children 2n and 2n + 1, and the last half are the leaves, one
    for each bin. A node holds the bin below it with the least value, of equals the first, or -1.
    """
    leaves = 1 << (bins - 1).bit_length()
    tree = np.full(2 * leaves, -1, np.int64)
    tree[leaves : leaves + bins] = np.arange(bins)
    while leaves > 1:
        tree[leaves // 2 : leaves] = tree[leaves : 2 * leaves : 2]
        leaves //= 2
    return tree


def update(tree: Any, values: Any, b: Any, winner: Any) -> None:
    """After the value of bin `b` has changed; `winner` is the bin itself, or -1 to take it out. To
    be compiled."""
    node = len(tree) // 2 + b
    tree[node] = winner
    while node > 1:
        node >>= 1
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left
        if left < 0 or (right >= 0 and values[right] < values[left]):
            tree[node] = right


def _filler(update: Callable[..., None]) -> Callable[..., int]:
    # Both heaps of `_place_limited` are trees over the bins here, from which any can be taken out.
    def fill(
        weights: Any,
        tokens: Any,
        placed: Any,
        open_bins: Any,
        short_bins: Any,
        loads: Any,
        used: Any,
        counts: Any,
        cap: Any,
        most: Any,
        extra: Any,
        reopened: Any,
    ) -> Any:
        for item in range(len(weights)):
            size = tokens[item]
            for _ in range(reopened):
                b = short_bins[1]
                if b < 0 or used[b] + size > cap:
                    break
                update(short_bins, used, b, -1)
                update(open_bins, loads, b, b)
            b = open_bins[1]
            while b >= 0:
                if counts[b] > most or (counts[b] == most and extra == 0):
                    update(open_bins, loads, b, -1)
                elif used[b] + size > cap:
                    update(open_bins, loads, b, -1)
                    update(short_bins, used, b, b)
                else:
                    break
                b = open_bins[1]
            if b < 0:
                return item
            if counts[b] == most:
                extra -= 1
            placed[item] = b
            counts[b] += 1
            used[b] += size
            loads[b] += weights[item]
            update(open_bins, loads, b, b)
        return len(weights)

    return fill
