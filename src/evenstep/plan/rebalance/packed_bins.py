"""Sequences to micro-batches without padding: the cost of one is the sum of its sequences' costs.

Ranks wait for each other in every micro-batch, so only micro-batches that run at the same time have
to cost the same. A sequence may cost more than a mean micro-batch. Then the first micro-batches of
all ranks are filled up to its cost, as far as they hold so many tokens, and the others share what
is left:

    costs 9, 3, 3, 3, 3, 3; two ranks with two micro-batches each, of 6 on average
    first micro-batches of 9:   {9}     {3, 3, 3}
    second ones of 3:           {3}     {3}

Swaps of sequences between bins, many bins at once, make their costs equal. In a round the costliest
bin meets one of the cheapest, the next meets the next, and so on. Each pair makes the one swap, of
a sequence for another or for none, that comes closest to halving the difference. For costs {9, 4}
and {5, 2} the 4 goes for the 2 and leaves 11 and 9. Invariant: the costlier bin of a pair never
gets costlier, and no bin exceeds `max_tokens`.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.bins import place_within
from evenstep.plan.partition.items import largest_first, sums

_ROUNDS = 24
_OFFERED = 6
"""Sequences of a bin that are looked at in a round: as many pairs of them are compared, squared."""
_FEW = 2_000
"""Over the number of bins: so many more rounds, and an eighth of that more sequences, as few bins
take little time."""
_IDLE = 8
"""Rounds in a row without a swap after which no more are expected."""
_CLOSE = 50_000
"""One part in this many above the mean is close enough."""
_WORST = 4
"""Bins give sequences away that are at least a part in this many as far above the mean as the
costliest: it is only the costliest that others wait for."""
_APART = 7
"""Bins that meet in a round are so many apart in the next."""


def swap(
    bin_of: Int64Array, costs: Int64Array, tokens: Int64Array, bins: int, max_tokens: int
) -> Int64Array:
    """[sequences] the bin of each after the swaps.

    Args:
        bin_of, costs, tokens: [sequences].
    """
    mean, bin_of = int(costs.sum()) // bins, bin_of.copy()
    excess, used = sums(costs, bin_of, bins) - mean, sums(tokens, bin_of, bins)
    # [sequences + 1] so that position -1, no sequence, costs and holds nothing.
    costs, tokens = np.append(costs, 0), np.append(tokens, 0)
    idle, more_rounds = 0, _FEW // bins
    offered = _OFFERED + more_rounds // 8
    for number in range(_ROUNDS + more_rounds):
        order = excess.argsort(kind="stable")
        high = order[::-1][: bins // 2]
        enough = max(mean // _CLOSE, int(excess[order[-1]]) // _WORST)
        high = high[: np.count_nonzero(excess[high] > enough)]
        if not len(high) or idle == _IDLE:
            break
        pair = np.arange(len(high))
        low = order[(pair + number * _APART) % (bins // 2)]
        given, taken = np.split(_members(bin_of, bins, np.append(high, low), number, offered), 2)
        wanted = (excess[high] - excess[low]) // 2
        # [pairs, offered, offered]
        shift = costs[given][:, :, None] - costs[taken][:, None, :]
        more = tokens[given][:, :, None] - tokens[taken][:, None, :]
        off = np.abs(wanted[:, None, None] - shift)
        room = (max_tokens - used[low])[:, None, None], (used[high] - max_tokens)[:, None, None]
        off[(more > room[0]) | (more < room[1])] = np.iinfo(np.int64).max
        flat = off.reshape(len(high), -1)
        best = flat.argmin(axis=1)
        better = np.flatnonzero(flat[pair, best] < wanted)
        idle = 0 if len(better) else idle + 1
        i, j = np.divmod(best[better], taken.shape[1])
        high, low, given, taken = high[better], low[better], given[better, i], taken[better, j]
        for row, source, target in ((given, high, low), (taken, low, high)):
            bin_of[row[row >= 0]] = target[row >= 0]
            for sign, bin_ in ((-1, source), (1, target)):
                excess[bin_] += sign * costs[row]
                used[bin_] += sign * tokens[row]
    return bin_of


def _members(
    bin_of: Int64Array, bins: int, chosen: Int64Array, number: int, offered: int
) -> Int64Array:
    """[chosen, offered] some sequences of each bin, and at least one -1; others in each round."""
    place = np.full(bins, -1)
    place[chosen] = np.arange(len(chosen))
    place = place[bin_of]
    held = np.flatnonzero(place >= 0)
    # Place and position share one key, which sorts faster than a stable argsort.
    keys = (place[held] << 32) + held
    keys.sort()
    size = np.bincount(place[held], minlength=len(chosen))[:, None]
    first = size.cumsum()[:, None] - size
    column = np.arange(min(int(size.max()), offered))
    # A bin of many sequences offers those from another position on in each round.
    at = (column + number * offered * (size > offered)) % np.maximum(size, 1)
    at = np.minimum(first + at, len(keys) - 1)  # empty bins begin behind it
    members = np.where(column < size, keys[at] & 0xFFFFFFFF, -1)
    return np.hstack([members, np.full((len(chosen), 1), -1)])


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
