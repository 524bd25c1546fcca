"""Swaps of sequences between bins, all bins at once, that bring each closer to its target.

In a round the bin that is furthest above its target meets the one that is furthest below, the next
meets the next, and so on. Each pair makes the one swap, of a sequence for another or for none, that
comes closest to halving the difference. For costs {9, 4} and {5, 2}, both with the target 10, the
4 goes for the 2 and leaves 11 and 9.

Invariant: the larger distance of a pair never grows, and no bin exceeds `max_tokens`.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import sums

_ROUNDS = 16
_CLOSE = 10_000
"""One part in this many above the target is close enough."""
_OFFERED = 16
"""Sequences of a bin that are looked at: as many pairs of them are compared, squared."""


def swap(
    bin_of: Int64Array,
    costs: Int64Array,
    tokens: Int64Array,
    targets: Int64Array,
    max_tokens: int,
) -> Int64Array:
    """[sequences] the bin of each after the swaps.

    Args:
        bin_of, costs, tokens: [sequences].
        targets: [bins] the cost that each should have.
    """
    bins, bin_of = len(targets), bin_of.copy()
    # [sequences + 1] so that position -1, no sequence, costs and holds nothing.
    costs, tokens = np.append(costs, 0), np.append(tokens, 0)
    half = bins // 2
    for number in range(_ROUNDS):
        excess = sums(costs[:-1], bin_of, bins) - targets
        if (excess * _CLOSE <= targets).all():
            break
        used = sums(tokens[:-1], bin_of, bins)
        order = excess.argsort(kind="stable")
        low, high = np.roll(order[:half], number), order[::-1][:half]
        members = _members(bin_of, bins, number)
        given, taken = members[high], members[low]  # [pairs, offered]
        gap = excess[high] - excess[low]
        shift = costs[given][:, :, None] - costs[taken][:, None, :]
        more = tokens[given][:, :, None] - tokens[taken][:, None, :]
        fits = (used[low][:, None, None] + more <= max_tokens) & (
            used[high][:, None, None] - more <= max_tokens
        )
        left = np.abs(gap[:, None, None] - 2 * shift)
        left[~fits] = np.iinfo(np.int64).max
        flat = left.reshape(half, -1)
        best = flat.argmin(axis=1)
        pair = np.arange(half)
        better = np.flatnonzero(flat[pair, best] < gap)
        i, j = np.divmod(best[better], members.shape[1])
        for row, target in (
            (given[better, i], low[better]),
            (taken[better, j], high[better]),
        ):
            moved = row >= 0
            bin_of[row[moved]] = target[moved]
    return bin_of


def _members(bin_of: Int64Array, bins: int, number: int) -> Int64Array:
    """[bins, offered] some sequences of each bin, and at least one -1; others in each round."""
    order = bin_of.argsort(kind="stable")
    counts = np.bincount(bin_of, minlength=bins)
    first = counts.cumsum() - counts
    width = min(int(counts.max()), _OFFERED)
    # A bin of many sequences offers those from another position on in each round.
    column = np.arange(width)
    at = (column + number * width * (counts > width)[:, None]) % np.maximum(counts, 1)[:, None]
    members = np.full((bins, width + 1), -1, np.int64)
    at = np.minimum(first[:, None] + at, len(order) - 1)  # empty bins begin behind the last
    members[:, :width] = np.where(column < counts[:, None], order[at], -1)
    return members
