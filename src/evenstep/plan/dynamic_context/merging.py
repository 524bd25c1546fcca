"""Groups with too much work and groups with too little become one, which shares it.

Whole documents on single ranks leave some ranks with more than others. Within a group sharding
makes work equal, so a rank with 8 % too much and one with 8 % too little are even as a group of
two. Only groups over the limit are merged, each with the one that has just enough to spare, or else
with the one that has most, and only if that makes them faster. So nearly all short documents stay
on one rank.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.dynamic_context.options import DynamicContext
from evenstep.plan.sharding.attention_tiles import TILE


@dataclass(frozen=True, eq=False)
class Loads:
    """What groups of ranks hold. Columns are int64 [groups]."""

    size: Int64Array
    tokens: Int64Array
    cost: Int64Array
    attention: Int64Array
    longest: Int64Array
    """Tokens of the longest document."""

    def overhead(self, options: DynamicContext) -> Int64Array:
        """[groups] what the slowest rank has besides its share of the cost: by rough cuts, and
        exchange that attention does not hide."""
        exposed = options.exchange.of(self.size, self.tokens) - self.attention // self.size
        shared = options.rough(self.longest) + np.maximum(exposed, 0)
        return np.where(self.size > 1, shared, 0)


def merge_groups(loads: Loads, options: DynamicContext, limit: float) -> tuple[Int64Array, float]:
    """Finds the groups to merge, so that no rank takes longer than `limit`, if that is possible.

    Returns:
        [groups] for each the group that it becomes part of, itself if none; and the time of the
        slowest rank.
    """
    columns = (loads.size, loads.tokens, loads.cost, loads.attention, loads.longest)
    overheads = loads.overhead(options)
    spares = loads.size * (limit - overheads).astype(np.int64) - loads.cost
    over = np.flatnonzero(spares < 0)
    over = over[np.argsort((spares / loads.size)[over], kind="stable")]
    able = np.flatnonzero(spares > 0)
    able = able[np.argsort(spares[able], kind="stable")]
    exchange, into = options.exchange, np.arange(len(spares))
    rates = exchange.within, exchange.between, exchange.node, options.cost.quadratic * TILE
    shelves = _shelves(spares, able, loads.size, options.powers_of_two)
    # Groups merge one after the other, so in plain numbers.
    within, between, node, rough = rates
    size, tokens, cost, attention, longest = (column.tolist() for column in columns)
    overhead = overheads.tolist()
    for index in over.tolist():
        while (spare := size[index] * int(limit - overhead[index]) - cost[index]) < 0:
            shelf = shelves.get(size[index] if options.powers_of_two else 0)
            if not shelf:
                break
            at = min(bisect_left(shelf, (-spare, -1)), len(shelf) - 1)
            other = shelf[at][1]
            ranks, held = size[index] + size[other], tokens[index] + tokens[other]
            work, own = cost[index] + cost[other], attention[index] + attention[other]
            most = max(longest[index], longest[other])
            rate = between if ranks > node else within
            extra = rough * most // 2 + max(rate * held * (ranks - 1) // ranks - own // ranks, 0)
            if work / ranks + extra >= cost[index] / size[index] + overhead[index]:
                break
            del shelf[at]
            size[index], tokens[index], cost[index], attention[index] = ranks, held, work, own
            longest[index], overhead[index] = most, extra
            into[other] = index
        if spare > 0:
            key = size[index] if options.powers_of_two else 0
            insort(shelves.setdefault(key, []), (spare, index))
    return _outcome(into, np.array(size), np.array(cost), np.array(overhead))


def _outcome(
    into: Int64Array, size: Int64Array, cost: Int64Array, overhead: Int64Array
) -> tuple[Int64Array, float]:
    kept = np.flatnonzero(into == np.arange(len(into)))
    while (into != into[into]).any():
        into = into[into]
    return into, float((cost / size + overhead)[kept].max())


def _shelves(
    spares: Int64Array, able: Int64Array, size: Int64Array, by_size: bool
) -> dict[int, list[tuple[int, int]]]:
    """(spare, group) of the groups that could take on work, ascending. With `by_size` one list for
    each size, as only groups of one size merge."""
    if not by_size:
        return {0: list(zip(spares[able].tolist(), able.tolist()))}
    shelves: dict[int, list[tuple[int, int]]] = {}
    for spare, group, key in zip(spares[able].tolist(), able.tolist(), size[able].tolist()):
        shelves.setdefault(key, []).append((spare, group))
    return shelves
