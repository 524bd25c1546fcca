"""Greedy placement: each item, costliest first, goes to the least loaded bin with room (LPT).

Bins may come in groups, as the micro-batches of a bucket do. Then each item goes to the least
loaded group that has a bin with room, and there to the least loaded of those bins.

Invariant: no bin ever holds more than `cap` tokens or more items than it may. Among equally loaded
groups the first is taken; among equally loaded bins of a group the one with the fewest items, and
among those the first.
"""

from __future__ import annotations

from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import Costs, largest_first

_FULL = (1 << 63) - 1
"""More tokens than any bin holds: a bin that takes no more items."""


def place(
    costs: Int64Array,
    bins: int,
    *,
    tokens: Int64Array | None = None,
    cap: int | None = None,
    per_group: int = 1,
    equal_counts: bool = False,
    order: Int64Array | None = None,
    reopen: int | None = 4,
) -> Int64Array | None:
    """Places every item, or none.

    Costs 5, 4, 3, 3, 3 go to two bins as ``{5, 3} {4, 3, 3}``: the bins 0, 1, 1, 0, 1. With a cap
    of two tokens, and one token each, the last item finds no room, and the outcome is None.

    Args:
        costs: [items] not negative, with a sum below 2**62.
        bins: number of bins.
        tokens: [items] tokens of each item, none above `cap`; needed with it.
        cap: tokens that a bin holds.
        per_group: bins of each group, of which `bins` is a multiple; 1 for bins without groups.
        equal_counts: whether bins hold equally many items, up to one.
        order: positions in the order in which items are placed; None is costliest first. Items that
            are not in it are not placed.
        reopen: how many groups that had no room for an earlier item are considered again for each
            next one. If all were, alternating long and short items would move all groups back and
            forth each time. None considers all of them, exactly as the rule says.

    Returns:
        [items] the bin of each, -1 for an item that is not in `order`; None where no bin had room
        for some item.
    """
    order = largest_first(costs) if order is None else order
    count = len(order)
    ordered = costs[order]
    if cap is None and not equal_counts and per_group == 1:
        found = _fill_unlimited(ordered.tolist(), bins)
    else:
        sizes = np.zeros(count, np.int64) if tokens is None or cap is None else tokens[order]
        most, extra = divmod(count, bins) if equal_counts else (count, 0)
        limits = _Limits(cap or 0, most, bins if reopen is None else reopen, extra)
        found = _fill(ordered.tolist(), sizes.tolist(), bins, limits, per_group=per_group)
    if len(found) < count:
        return None
    bin_of = np.full(len(costs), -1, np.int64)
    bin_of[order] = found
    return bin_of


def lpt_fill(
    lengths: Int64Array, costs: Int64Array, order: Int64Array, micro_batches: int, max_tokens: int
) -> Int64Array:
    """Places documents in micro-batches in the given order (WLB-LLM, section 4.3). A document that
    finds no room is left out, and others after it may still find some.

    Args:
        lengths, costs: [documents] tokens and cost of each.
        order: positions of the documents to place.

    Returns:
        [documents] the micro-batch of each; -1 for one that is not in `order` or found no room.
    """
    limits = _Limits(max_tokens, len(order), micro_batches)
    found = _fill(
        costs[order].tolist(), lengths[order].tolist(), micro_batches, limits, leave_out=True
    )
    bin_of = np.full(len(costs), -1, np.int64)
    bin_of[order] = found
    return bin_of


def _fill_unlimited(costs: list[int], bins: int) -> list[int]:
    """What `_fill` does without limits or groups, in half the time."""
    queue = list(range(bins))  # load * bins + bin
    placed = []
    for cost in costs:
        key = queue[0]
        placed.append(key % bins)
        heapreplace(queue, key + cost * bins)
    return placed


class _Limits(NamedTuple):
    cap: int
    """Tokens of a bin."""
    most: int
    """Items of a bin; and one more in `extra` of the bins."""
    reopen: int
    extra: int = 0


def _fill(
    costs: list[int],
    tokens: list[int],
    bins: int,
    limits: _Limits,
    *,
    per_group: int = 1,
    leave_out: bool = False,
) -> list[int]:
    """The bin of each item, up to the first without room; or, to `leave_out` such items, of all,
    with -1 for those."""
    cap, most, reopen, extra = limits
    groups = bins // per_group
    loads, used, counts = [0] * groups, [0] * bins, [0] * bins
    # [groups][bins of a group] (load, items, bin): the least of those with room takes the item.
    held = [[(0, 0, b) for b in range(g * per_group, (g + 1) * per_group)] for g in range(groups)]
    open_groups = list(range(groups))  # heap of load * groups + group
    closed: list[int] = []  # groups without room: heap of tokens of the emptiest bin, likewise
    items_limit = most + 1 if extra else most
    placed: list[int] = []
    for cost, size in zip(costs, tokens):
        tokens_limit = cap - size  # with more than that, a bin has no room
        for _ in range(reopen):
            if not closed or closed[0] // groups > tokens_limit:
                break
            g = heappop(closed) % groups
            heappush(open_groups, loads[g] * groups + g)
        while open_groups:
            b = g = open_groups[0] % groups
            if per_group == 1:  # as below, in half the time
                if used[b] <= tokens_limit and counts[b] < items_limit:
                    break
                emptiest = used[b] if counts[b] < items_limit else _FULL
            else:
                fitting = [x for x in held[g] if used[x[2]] <= tokens_limit and x[1] < items_limit]
                if fitting:
                    load, items, b = min(fitting)
                    held[g][b % per_group] = (load + cost, items + 1, b)
                    break
                emptiest = min([used[b] if n < items_limit else _FULL for _, n, b in held[g]])
            heappop(open_groups)
            if emptiest < _FULL:  # else it is closed for good
                heappush(closed, emptiest * groups + g)
        else:
            if not leave_out:
                break
            placed.append(-1)
            continue
        if counts[b] == most:
            extra -= 1
            items_limit = most + 1 if extra else most
        placed.append(b)
        counts[b] += 1
        used[b] += size
        loads[g] += cost
        heapreplace(open_groups, loads[g] * groups + g)
    return placed


def fill_empty(bin_of: Int64Array, costs: Costs, bins: int) -> Int64Array:
    """Moves one of the cheapest items that are not alone in their bin to each empty bin, as long
    as there are any: of costs 5, 2, 1 in the bins 0, 0, 0 of two, the 1 goes to bin 1.

    Args:
        bin_of, costs: [items].

    Returns:
        [items] the bin of each.
    """
    counts = np.bincount(bin_of, minlength=bins)
    empty = np.flatnonzero(counts == 0).tolist()
    if not empty:
        return bin_of
    bin_of = bin_of.copy()
    for row in costs.argsort(kind="stable").tolist():
        if not empty:
            break
        donor = bin_of[row]
        if counts[donor] > 1:
            counts[donor] -= 1
            bin_of[row] = empty.pop(0)
    return bin_of
