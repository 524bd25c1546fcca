"""Greedy placement for numba: what `evenstep.plan.partition.greedy` does, five times as fast.

Both heaps are tournament trees here, from which any group can be taken out. Node 1 is the root,
node n has the children 2n and 2n + 1, and the last half are the leaves, one for each group. A node
names the group below it with the least value, of equals the first, or -1 where there is none. Of
three groups with the loads 7, 5 and 5, node 1 is 1, nodes 2 and 3 are 1 and 2, and the leaves are
0, 1, 2 and -1.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array

FULL = 1 << 62
"""Stands for the tokens of a bin that holds as many items as it may: no item has room in it."""


@cache
def compiled() -> Callable[..., Int64Array] | None:
    """`greedy._fill` for numba, compiled at its first call; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # Not cached on disk: the package's folder may be read-only, or shared with other machines.
    jit = numba.njit(nogil=True)
    fill = jit(_filler(jit(_lightest), jit(_emptiest), jit(_update)))

    def place(
        costs: Int64Array,
        tokens: Int64Array,
        bins: int,
        per_group: int,
        cap: int,
        most: int,
        extra: int,
        reopen: int,
    ) -> Int64Array:
        # Arrays are made here, as it takes numba long to compile that.
        groups = bins // per_group
        open_groups = _tree(groups)
        closed = np.full_like(open_groups, -1)
        placed = np.empty(len(costs), np.int64)
        loads, emptiest = np.zeros((2, groups), np.int64)  # of groups
        held, counts, used = np.zeros((3, bins), np.int64)  # of bins
        count = fill(
            *(costs, tokens, placed, open_groups, closed, loads, emptiest, held, counts, used),
            *(per_group, cap, most, extra, reopen),
        )
        return placed[:count]

    return place


def _tree(groups: int) -> Int64Array:
    """A tree over groups whose values are all 0."""
    leaves = 1 << (groups - 1).bit_length()
    tree = np.full(2 * leaves, -1, np.int64)
    tree[leaves : leaves + groups] = np.arange(groups)
    while leaves > 1:
        tree[leaves // 2 : leaves] = tree[leaves : 2 * leaves : 2]
        leaves //= 2
    return tree


def _update(tree: Any, values: Any, group: Any, winner: Any) -> None:
    """Plays the matches of `group` again after its value has changed; `winner` is the group
    itself, or -1 to take it out."""
    node = len(tree) // 2 + group
    tree[node] = winner
    while node > 1:
        node >>= 1
        left, right = tree[2 * node], tree[2 * node + 1]
        tree[node] = left
        if left < 0 or (right >= 0 and values[right] < values[left]):
            tree[node] = right


def _lightest(
    held: Any, counts: Any, used: Any, first: Any, end: Any, tokens_limit: Any, items_limit: Any
) -> Any:
    """The least loaded bin from `first` to `end` that has room, or -1."""
    best = -1
    for b in range(first, end):
        if used[b] > tokens_limit or counts[b] >= items_limit:
            continue
        if best < 0 or held[b] < held[best] or (held[b] == held[best] and counts[b] < counts[best]):
            best = b
    return best


def _emptiest(counts: Any, used: Any, first: Any, end: Any, items_limit: Any) -> Any:
    """Tokens of the bin with the fewest, among those that may hold another item."""
    least = FULL
    for b in range(first, end):
        if counts[b] < items_limit and used[b] < least:
            least = used[b]
    return least


def _filler(
    lightest: Callable[..., Any], emptiest_of: Callable[..., Any], update: Callable[..., None]
) -> Callable[..., int]:
    def fill(
        costs: Any,
        tokens: Any,
        placed: Any,
        open_groups: Any,
        closed: Any,
        loads: Any,
        emptiest: Any,
        held: Any,
        counts: Any,
        used: Any,
        per_group: Any,
        cap: Any,
        most: Any,
        extra: Any,
        reopen: Any,
    ) -> Any:
        items_limit = most + 1 if extra > 0 else most
        for item in range(len(costs)):
            tokens_limit = cap - tokens[item]
            for _ in range(reopen):
                g = closed[1]
                if g < 0 or emptiest[g] > tokens_limit:
                    break
                update(closed, emptiest, g, -1)
                update(open_groups, loads, g, g)
            g, b = open_groups[1], -1
            while g >= 0:
                first, end = g * per_group, (g + 1) * per_group
                b = lightest(held, counts, used, first, end, tokens_limit, items_limit)
                if b >= 0:
                    break
                update(open_groups, loads, g, -1)
                emptiest[g] = emptiest_of(counts, used, first, end, items_limit)
                if emptiest[g] < FULL:  # else it is closed for good
                    update(closed, emptiest, g, g)
                g = open_groups[1]
            if b < 0:
                return item
            if counts[b] == most:
                extra -= 1
                items_limit = most + 1 if extra > 0 else most
            placed[item] = b
            held[b] += costs[item]
            counts[b] += 1
            used[b] += tokens[item]
            loads[g] += costs[item]
            update(open_groups, loads, g, g)
        return len(costs)

    return fill
