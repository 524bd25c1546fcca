"""Swaps of sequences between bins, many bins at once, that make their costs equal.

In a round the costliest bin meets one of the cheapest, the next meets the next, and so on. Each
pair makes the one swap, of a sequence for another or for none, that comes closest to halving the
difference. For costs {9, 4} and {5, 2} the 4 goes for the 2 and leaves 11 and 9.

Invariant: the costlier bin of a pair never gets costlier, and no bin exceeds `max_tokens`.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import sums

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
