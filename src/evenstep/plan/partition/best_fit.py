"""Best-fit decreasing bin packing: the fewest groups of whole samples under a token capacity.

Samples are placed from the longest to the shortest, each into the group with the least free space
that still holds it, or into a new one. On real lengths that reaches the lower bound.

The algorithm is written twice, and both give the same groups: with plain lists, and for numba, some
ten times faster. To import numba and compile takes a second or two in each process, as much as the
plain one takes for a million samples; so small inputs, such as windows, never do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.token_budget_groups import longest_first

Place = Callable[[Int64Array, int], Int64Array]

_COMPILE_FROM = 1 << 16
"""Samples from which on numba is used: large inputs, packed in every epoch, soon pay for it."""
_LARGEST_TABLE = 1 << 22
"""Capacity up to which numba is used, where a table has an entry for every free space."""


def best_fit_decreasing(lengths: Int64Array, capacity: int) -> Groups:
    """Packs samples into groups of at most `capacity` tokens.

    Deterministic, with numba or without: samples of one length go in order of arrival, and of
    groups with the same free space the one that reached it last is taken. Samples of 6, 5, 4, 3
    and 2 tokens and a capacity of 10 make the groups {6, 4} and {5, 3, 2}.

    Args:
        lengths: [samples] int64, each positive and below 2**31.
        capacity: tokens that a group holds.

    Returns:
        Groups of positions in `lengths`, in the order in which they were opened; within a group
        from the longest sample to the shortest.

    Raises:
        ConfigurationError: a sample is longer than the capacity.
    """
    if not len(lengths):
        return Groups.empty()
    order = longest_first(lengths)
    descending = lengths[order]
    if descending[0] > capacity:
        raise ConfigurationError(
            f"sample {order[0]} has {descending[0]:,} tokens, over the capacity of {capacity:,}; "
            "truncate or split it in the dataset, or raise max_tokens"
        )
    compiles = len(lengths) >= _COMPILE_FROM and capacity <= _LARGEST_TABLE
    place = (place_compiled() if compiles else None) or place_plain
    groups = Groups.by_label(place(descending, capacity))
    return Groups(order[groups.members], groups.offsets)


def place_plain(descending: Int64Array, capacity: int) -> Int64Array:
    """The groups of samples in the given order.

    Args:
        descending: [samples] lengths, longest first, none above `capacity`.

    Returns:
        [samples] the group of each, numbered in the order of opening.
    """
    lengths: list[int] = descending.tolist()
    shortest = lengths[-1]
    spaces: list[int] = []  # free spaces that some group has, each once, ascending
    holders: dict[int, list[int]] = {}  # the groups with that free space, latest last
    placed: list[int] = []
    opened = 0
    for length in lengths:
        at = bisect_left(spaces, length)
        if at < len(spaces):
            space = spaces[at]
            groups = holders[space]
            group = groups.pop()
            if not groups:
                del spaces[at]
        else:
            space, group = capacity, opened
            opened += 1
        placed.append(group)
        space -= length
        if space >= shortest:
            groups = holders.setdefault(space, [])
            if not groups:
                spaces.insert(bisect_left(spaces, space), space)
            groups.append(group)
    return np.array(placed, np.int64)


@cache
def place_compiled() -> Place | None:
    """`place_plain`, compiled; None where numba is not installed."""
    try:
        import numba
    except ImportError:
        return None
    # Not cached on disk: the package's folder may be read-only, or shared with other machines.
    fill = numba.njit(nogil=True)(_fill)

    def place(descending: Int64Array, capacity: int) -> Int64Array:
        count, leaves = len(descending), 1 << capacity.bit_length()
        placed = np.empty(count, np.int64)
        # Arrays are made here, as it takes numba long to compile that.
        fill(
            descending,
            capacity,
            placed,
            np.zeros(2 * leaves, np.bool_),
            np.full(leaves, -1, np.int32),
            np.empty(count, np.int32),
        )
        return placed

    return place


def _fill(descending: Any, capacity: Any, placed: Any, tree: Any, latest: Any, before: Any) -> None:
    # `latest` holds, by free space, the group that reached it last, and `before`, by group, the one
    # that reached the same space before it. `tree` is a binary tree over the free spaces: node 1 is
    # the root, node n has the children 2n and 2n + 1, the last half are the leaves, and a node is
    # set where some group has a free space below it.
    leaves = len(tree) // 2
    shortest = descending[-1]
    opened = 0
    for sample in range(len(descending)):
        length = descending[sample]
        # The first set leaf from `length` on: up to where there is a set node to the right, down.
        node = leaves + length
        if not tree[node]:
            while node > 1 and (node & 1 or not tree[node + 1]):
                node >>= 1
            if node > 1:
                node += 1
                while node < leaves:
                    node <<= 1
                    if not tree[node]:
                        node += 1
        if node > 1:
            space = node - leaves
            group = latest[space]
            latest[space] = before[group]
            if latest[space] < 0:
                tree[node] = False
                while node > 1 and not tree[node ^ 1]:
                    node >>= 1
                    tree[node] = False
        else:
            space = capacity
            group = opened
            opened += 1
        placed[sample] = group
        space -= length
        if space >= shortest:
            before[group] = latest[space]
            latest[space] = group
            node = leaves + space
            while node >= 1 and not tree[node]:
                tree[node] = True
                node >>= 1
