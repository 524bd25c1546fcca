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
from typing import NamedTuple

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.dynamic_context.options import DynamicContext


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

    def time(self, options: DynamicContext) -> Float64Array:
        """[groups] cost of the slowest rank."""
        return self.cost / self.size + self.overhead(options)


def merge_groups(loads: Loads, options: DynamicContext, limit: float) -> tuple[Int64Array, float]:
    """Finds the groups to merge, so that no rank takes longer than `limit`, if that is possible.

    Returns:
        [groups] for each the group that it becomes part of, itself if none; and the time of the
        slowest rank.
    """
    spares = loads.size * (limit - loads.overhead(options)).astype(np.int64) - loads.cost
    shelves = _shelves(spares, loads.size, options.powers_of_two)
    over = np.flatnonzero(spares < 0)
    over = over[np.argsort((spares / loads.size)[over], kind="stable")]
    rows = np.stack((loads.size, loads.tokens, loads.cost, loads.attention, loads.longest)).T
    merged: dict[int, _Group] = {}
    into = np.arange(len(rows))
    for index in over.tolist():
        group = merged.pop(index, None) or _Group(*rows[index].tolist())
        time = group.time(options)
        while time > limit:
            shelf = shelves.get(group.size if options.powers_of_two else 0)
            if not shelf:
                break
            lack = -group.spare(options, limit)
            at = min(bisect_left(shelf, (lack, -1)), len(shelf) - 1)
            other = shelf[at][1]
            both = group.merged(merged.get(other) or _Group(*rows[other].tolist()))
            if (slower := both.time(options)) >= time:
                break
            del shelf[at]
            merged.pop(other, None)
            group, time = both, slower
            into[other] = index
        merged[index] = group
        if (spare := group.spare(options, limit)) > 0:
            key = group.size if options.powers_of_two else 0
            insort(shelves.setdefault(key, []), (spare, index))
    while (into != into[into]).any():
        into = into[into]
    alone = np.bincount(into, minlength=len(rows)) == 1
    slowest = max((group.time(options) for group in merged.values()), default=0.0)
    return into, max(slowest, float(loads.time(options)[alone].max(initial=0)))


def _shelves(
    spares: Int64Array, size: Int64Array, by_size: bool
) -> dict[int, list[tuple[int, int]]]:
    """(spare, group) of the groups that could take on work, ascending. With `by_size` one list for
    each size, as only groups of one size merge."""
    able = np.flatnonzero(spares > 0)
    able = able[np.argsort(spares[able], kind="stable")]
    if not by_size:
        return {0: list(zip(spares[able].tolist(), able.tolist()))}
    shelves: dict[int, list[tuple[int, int]]] = {}
    for spare, group, key in zip(spares[able].tolist(), able.tolist(), size[able].tolist()):
        shelves.setdefault(key, []).append((spare, group))
    return shelves


class _Group(NamedTuple):
    """One column of `Loads` in plain numbers, as groups merge one after the other."""

    size: int
    tokens: int
    cost: int
    attention: int
    longest: int

    def merged(self, other: _Group) -> _Group:
        size, tokens, cost, attention, longest = other
        return _Group(
            self.size + size,
            self.tokens + tokens,
            self.cost + cost,
            self.attention + attention,
            max(self.longest, longest),
        )

    def overhead(self, options: DynamicContext) -> int:
        if self.size == 1:
            return 0
        exposed = options.exchange.of(self.size, self.tokens) - self.attention // self.size
        return options.rough(self.longest) + max(exposed, 0)

    def time(self, options: DynamicContext) -> float:
        return self.cost / self.size + self.overhead(options)

    def spare(self, options: DynamicContext, limit: float) -> int:
        return self.size * int(limit - self.overhead(options)) - self.cost
