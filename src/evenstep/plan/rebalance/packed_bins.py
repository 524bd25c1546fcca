"""Sequences to micro-batches without padding: the cost of one is the sum of its sequences' costs.

Ranks wait for each other in every micro-batch, so only micro-batches that run at the same time have
to cost the same. A sequence may cost more than a mean micro-batch. Then the first micro-batch of
every rank gets a higher target, that sequence's cost, and the others share what is left:

    costs 9, 3, 3, 3, 3, 3; two ranks with two micro-batches each, of 6 on average
    first micro-batches of 9:   {9}     {3, 3, 3}
    second ones of 3:           {3}     {3}

Sequences are placed from the costliest on, each in the micro-batch that is furthest below its
target.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.best_fit import best_fit_decreasing
from evenstep.plan.partition.greedy import place
from evenstep.plan.partition.items import largest_first, sums
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
    order = largest_first(costs)
    targets = _targets(costs[order], ranks, micro_batches)
    # What a bin is to hold less than the first ones, it starts with: the least target first, so
    # that each of these goes to a bin of its own.
    start = (targets[0] - targets[targets < targets[0]])[::-1].repeat(ranks)
    placed = len(start)
    found = place(
        np.append(start, costs),
        bins,
        tokens=np.append(np.zeros(placed, np.int64), tokens),
        cap=max_tokens,
        order=np.append(np.arange(placed), placed + order),
    )
    if found is not None:
        lowered = sums(np.append(start, np.zeros_like(costs)), found, bins)
        return swap(found[placed:], costs, tokens, targets[0] - lowered, max_tokens)
    bin_of = place(costs, bins, tokens=tokens, cap=max_tokens, order=largest_first(tokens))
    if bin_of is None:
        fitted = best_fit_decreasing(tokens, max_tokens)
        if len(fitted) > bins:
            return None
        bin_of = np.empty(len(tokens), np.int64)
        bin_of[fitted.members] = np.arange(len(fitted)).repeat(fitted.sizes)
    return swap(bin_of, costs, tokens, targets.repeat(ranks), max_tokens)


def _targets(descending: Int64Array, ranks: int, micro_batches: int) -> Int64Array:
    """[micro_batches] the cost that each rank's micro-batch should have, not ascending.

    Args:
        descending: [sequences] costs, the largest first.
    """
    left = int(descending.sum())
    targets = np.zeros(micro_batches, np.int64)
    for step in range(micro_batches):
        later = micro_batches - step
        mean = max(left, 0) // (ranks * later)
        costliest = int(descending[step * ranks]) if step * ranks < len(descending) else 0
        if costliest <= mean:
            targets[step:] = mean
            break
        targets[step] = costliest
        left -= ranks * costliest
    return targets
