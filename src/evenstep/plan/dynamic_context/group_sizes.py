"""Ranks for each document that is too much for one, in cost or in tokens.

A document gets as few ranks as bring the time of each down to that of the micro-batch, which is at
first the mean of all ranks. If there are too few ranks for that, or a document cannot be that fast
on any number, as exchange between nodes takes longer, the micro-batch is given the time that
suffices.
"""

from __future__ import annotations

from collections.abc import Callable

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

    def sizes_in(time: float) -> Int64Array | None:
        return _sizes(tokens, cost, attention, options, time * (1 + tolerance))

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


def _sizes(
    tokens: Int64Array,
    cost: Int64Array,
    attention: Int64Array,
    options: DynamicContext,
    time: float,
) -> Int64Array | None:
    """Ranks of each of the first parcels if none may take longer than `time`; None if one cannot
    be that fast."""
    heads = int(np.searchsorted(-tokens, -options.tokens_per_rank))
    heads = max(heads, int(np.searchsorted(-cost, -time)))
    tokens, cost, attention = tokens[:heads], cost[:heads], attention[:heads]
    exchange = options.exchange
    memory = -(-tokens // options.tokens_per_rank)
    left: Float64Array = time - options.rough(tokens).astype(np.float64)
    sizes = np.maximum(_fewest(tokens, cost, attention, exchange.within, left), memory)
    far = sizes > exchange.node
    if far.any():
        wide = _fewest(tokens, cost, attention, exchange.between, left)
        sizes = np.where(far, np.maximum(np.maximum(wide, memory), exchange.node + 1), sizes)
    if len(sizes) and sizes.max() > options.ranks:
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
