"""Ranks for each document that is too much for one, in cost or in tokens.

A document gets as few ranks as bring the time of each down to that of the micro-batch, which is at
first the mean of all ranks. If there are too few ranks for that, or a document cannot be that fast
on any number, as exchange between nodes takes longer, the micro-batch is given the time that
suffices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.dynamic_context.options import DynamicContext

_STEPS = 12
"""Halvings of the interval in which the least sufficient time is sought."""


def group_sizes(
    tokens: Int64Array,
    cost: Int64Array,
    attention: Int64Array,
    options: DynamicContext,
    mean: float,
    tolerance: float,
) -> tuple[Int64Array, float] | None:
    """Sizes of the groups of the first parcels, and the time that ranks should take.

    Args:
        tokens, cost, attention: [parcels] of a micro-batch, the longest documents first.
        mean: cost of a rank, on average.
        tolerance: share of the time that a rank may take longer.

    Returns:
        [groups] ranks of the first parcels, and the time: `mean`, or that of a document which
        cannot be faster. The parcels after them are for single ranks. If whole groups would be more
        ranks than there are, some take longer than the time. None if memory alone asks for more.
    """
    # No more than these are too much for one rank, in any time from the mean on.
    by_memory = int(np.searchsorted(-tokens, -options.tokens_per_rank))
    heads = max(by_memory, int(np.searchsorted(-cost, -mean * (1 + tolerance))))
    long = _Long.of(tokens[:heads], cost[:heads], attention[:heads], options, by_memory)

    def sizes_in(time: float) -> Int64Array | None:
        return _sizes(long, options, time * (1 + tolerance))

    sizes = sizes_in(mean)
    time, most = mean, 2 * float(cost.sum())  # enough for one rank that has all, roughly cut
    if sizes is None:
        time = _least(lambda tried: sizes_in(tried) is not None, mean, most)
        sizes = sizes_in(time)
    if sizes is None or int(sizes.sum()) > options.ranks:
        slower = _least(lambda tried: _enough(sizes_in(tried), options.ranks), time, most)
        sizes = sizes_in(slower)
    return (sizes, time) if sizes is not None and _enough(sizes, options.ranks) else None


def _enough(sizes: Int64Array | None, ranks: int) -> bool:
    return sizes is not None and int(sizes.sum()) <= ranks


def _least(suffices: Callable[[float], bool], low: float, high: float) -> float:
    """About the least time from `low` to `high` that suffices, if `high` does."""
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


@dataclass(frozen=True, eq=False)
class _Long:
    """The parcels that may be too much for one rank. Columns are [parcels]."""

    tokens: Int64Array
    cost: Int64Array
    cheapness: Int64Array
    """Minus the cost, ascending."""
    attention: Int64Array
    memory: Int64Array
    """Ranks whose memory each needs."""
    rough: Float64Array
    """See `DynamicContext.rough`."""
    by_memory: int
    """Those that need several ranks' memory."""

    @classmethod
    def of(
        cls,
        tokens: Int64Array,
        cost: Int64Array,
        attention: Int64Array,
        options: DynamicContext,
        by_memory: int,
    ) -> _Long:
        memory = -(-tokens // options.tokens_per_rank)
        rough: Float64Array = options.rough(tokens).astype(np.float64)
        return cls(tokens, cost, -cost, attention, memory, rough, by_memory)


def _sizes(long: _Long, options: DynamicContext, time: float) -> Int64Array | None:
    """Ranks of each of the first parcels if none may take longer than `time`; None if one cannot
    be that fast."""
    heads = max(long.by_memory, int(np.searchsorted(long.cheapness, -time)))
    if not heads:
        return np.empty(0, np.int64)
    tokens, cost, attention = long.tokens[:heads], long.cost[:heads], long.attention[:heads]
    memory, exchange = long.memory[:heads], options.exchange
    left: Float64Array = time - long.rough[:heads]
    sizes = np.maximum(_fewest(tokens, cost, attention, exchange.within, left), memory)
    far = sizes > exchange.node
    if far.any():
        wide = _fewest(tokens, cost, attention, exchange.between, left)
        sizes = np.where(far, np.maximum(np.maximum(wide, memory), exchange.node + 1), sizes)
    if sizes.max() > options.ranks:
        return None
    whole = sizes.astype(np.int64)
    if options.powers_of_two:
        whole = 1 << np.ceil(np.log2(np.maximum(whole, 1))).astype(np.int64)
    return whole


def _fewest(
    tokens: Int64Array, cost: Int64Array, attention: Int64Array, rate: int, time: Float64Array
) -> Float64Array:
    """[groups] ranks among which each takes no longer than `time`; infinity if those are so many
    that their attention would no longer hide the exchange of `rate` a token."""
    ranks = np.ceil(cost / np.maximum(time, 1e-9))  # far too many where there is no time at all
    hidden = attention >= ranks * (rate * tokens)
    return np.where(hidden | (ranks <= 1), ranks, np.inf)
