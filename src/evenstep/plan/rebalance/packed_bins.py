"""Sequences to micro-batches without padding: the cost of one is the sum of its sequences' costs.

Ranks wait for each other in every micro-batch, so only micro-batches that run at the same time have
to cost the same. A sequence may cost more than a mean micro-batch. Then the first micro-batches of
all ranks are filled up to its cost, as far as they hold so many tokens, and the others share what
is left:

    costs 9, 3, 3, 3, 3, 3; two ranks with two micro-batches each, of 6 on average
    first micro-batches of 9:   {9}     {3, 3, 3}
    second ones of 3:           {3}     {3}
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import largest_first
from evenstep.plan.partition.multiway import place_within
from evenstep.plan.rebalance.swaps import swap


def packed_bins(
    costs: Int64Array, tokens: Int64Array, ranks: int, micro_batches: int, max_tokens: int
) -> Int64Array | None:
    """Places sequences in ``ranks * micro_batches`` bins.

    Args:
        costs, tokens: [sequences] of each.

    Returns:
        [sequences] the bin of each; None where they were not found to fit.
    """
    bins = ranks * micro_batches
    bin_of = _filled_up(costs, tokens, ranks, micro_batches, max_tokens)
    first = int(bin_of.max(initial=-1)) + 1
    left = np.flatnonzero(bin_of < 0)
    found = _even(costs[left], tokens[left], bins - first, max_tokens)
    if found is not None:
        bin_of[left] = first + found
        return bin_of
    return _even(costs, tokens, bins, max_tokens) if first else None


def _filled_up(
    costs: Int64Array, tokens: Int64Array, ranks: int, micro_batches: int, max_tokens: int
) -> Int64Array:
    """[sequences] the bin of each, or -1 for those that are left for bins of equal cost.

    As long as a sequence costs more than a mean bin, `ranks` bins begin with the costliest
    sequences, and each takes the costliest that fits, until none does.
    """
    bin_of = np.full(len(costs), -1, np.int64)
    bins, total, first = ranks * micro_batches, int(costs.sum()), 0
    if int(costs.max(initial=0)) * bins <= total:
        return bin_of
    order = largest_first(costs)[::-1]
    ascending, sizes = costs[order].tolist(), tokens[order].tolist()
    # [sequences] the most tokens of all that cost no more.
    most = np.maximum.accumulate(tokens[order]).tolist()
    # [sequences + 1] n itself if the n-th sequence by cost is left, or one before it; 0 for none.
    nearest = list(range(len(order) + 1))

    def take(number: int) -> int:
        """The place of the costliest of the cheapest `number` that is left, or -1."""
        while nearest[number] != number:
            nearest[number] = number = nearest[nearest[number]]
        nearest[number] = max(number - 1, 0)
        return number - 1

    while first < bins - ranks:
        started = [take(len(order)) for _ in range(ranks)]
        limit = ascending[started[0]] if started[0] >= 0 else 0
        if limit * (bins - first) <= total:
            break
        for bin_, number in enumerate(started, first):
            need, room = limit, max_tokens
            while number >= 0:
                bin_of[order[number]] = bin_
                need -= ascending[number]
                room -= sizes[number]
                total -= ascending[number]
                number = take(min(bisect_right(ascending, need), bisect_right(most, room)))
        first += ranks
    return bin_of


def _even(costs: Int64Array, tokens: Int64Array, bins: int, max_tokens: int) -> Int64Array | None:
    """[sequences] the bin of each, of `bins` of equal cost; None where they do not fit."""
    bin_of = place_within(costs, tokens, bins, max_tokens)
    return None if bin_of is None else swap(bin_of, costs, tokens, bins, max_tokens)
