"""Best-fit decreasing bin packing: the fewest groups of whole samples under a token capacity.

Samples are placed from the longest to the shortest, each into the group with the least free space
that still holds it, or into a new one. On real lengths that reaches the lower bound.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.token_budget_groups import longest_first


def best_fit_decreasing(lengths: Int64Array, capacity: int) -> Groups:
    """Packs samples into groups of at most `capacity` tokens.

    Deterministic: samples of one length go in order of arrival, and of
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
    groups = Groups.by_label(_place(descending, capacity))
    return Groups(order[groups.members], groups.offsets)


def _place(descending: Int64Array, capacity: int) -> Int64Array:
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
