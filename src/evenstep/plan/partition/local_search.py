"""Moves and swaps that lower the heaviest bin of a partition.

Each round, the heaviest bin gives an item to one of the lightest: for a lighter item, for two, or
for nothing. Of all such exchanges the one is made after which the heavier of both bins is lightest.
Invariant: that is strictly less than the heaviest was, so no partition gets worse; and token caps
and equal counts stay kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.greedy import heaviest_first
from evenstep.plan.partition.items import sums

__all__ = ["Limits", "improve"]


_PARTNERS = 8
"""Bins that the heaviest one is compared with in a round."""
_PAIRED = 48
"""Items in a bin up to which two are offered for one. In larger bins single ones do."""
_NEIGHBOURS = 8
"""On either side of what would suit best: others that may, where a cap forbids that one."""
_BARRED = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an exchange must keep."""

    tokens: Int64Array | None = None
    """[items]; needed with `cap`."""
    cap: int | None = None
    """Tokens that a bin holds."""
    equal_counts: bool = False
    """Whether bins hold equally many items, up to one."""


@dataclass(frozen=True)
class _Exchange:
    """One item of the heavier bin for none, one or two of the lighter."""

    peak: int
    """Load of the heavier of both bins afterwards."""
    given: int
    taken: tuple[int, ...]


def improve(
    bin_of: Int64Array, weights: Int64Array, bins: int, *, goal: int, limits: Limits
) -> Int64Array:
    """
    Args:
        bin_of: [items] the bin of each, within the limits.
        weights: [items] not negative.
        bins: number of bins.
        goal: load of the heaviest bin that is low enough.
        limits: what stays kept.

    Returns:
        [items] the bin of each afterwards. At most 64 + 2 x bins, and no more than 256, pairs of
        bins are compared, but for the last round, which is finished.
    """
    loads = sums(weights, bin_of, bins)
    if not len(weights) or loads.max() <= goal:
        return bin_of
    state = _Bins(bin_of, weights, loads, limits)
    left = min(64 + 2 * bins, 256)
    while left > 0:
        high = int(loads.argmax())
        heavy = int(loads[high])
        if heavy <= goal:
            break
        best: tuple[int, _Exchange] | None = None
        partners = state.partners(high)
        for pairs in (False, True):
            for low in partners if best is None else ():
                left -= 1
                found = state.compare(high, low, pairs)
                if found is not None and (best is None or found.peak < best[1].peak):
                    best = low, found
                    if found.peak <= max(goal, heavy - (heavy - int(loads[low])) // 4):
                        break  # at least half of what the lightest bin could take
        if best is None:
            break
        state.make(high, *best)
    return state.bin_of


class _Bins:
    """What is in each bin while exchanges are made."""

    def __init__(
        self, bin_of: Int64Array, weights: Int64Array, loads: Int64Array, limits: Limits
    ) -> None:
        self.bin_of: Int64Array = bin_of.copy()
        self._loads, self._weights = loads, weights
        self._counts = np.bincount(bin_of, minlength=len(loads))
        self._equal_counts, self._cap = limits.equal_counts, limits.cap
        self._tokens = np.zeros(len(weights), np.int64)
        if limits.cap is not None and limits.tokens is not None:
            self._tokens = limits.tokens
        self._used = sums(self._tokens, bin_of, len(loads))
        order = heaviest_first(weights)[::-1]
        keys = (bin_of[order] << 32) + np.arange(len(order))
        keys.sort()
        self._members = np.split(order[keys & 0xFFFFFFFF], self._counts.cumsum()[:-1])
        """[bins] positions of the items in each, lightest first."""
        self._lightest_first = order

    def partners(self, high: int) -> list[int]:
        """Lighter bins: those with the lightest loads, and those that hold the lightest items."""
        lightest = self._loads.argsort(kind="stable")[:_PARTNERS]
        holders = self.bin_of[self._lightest_first[: len(self._members[high]) + _PARTNERS]]
        bins = lightest.tolist() + holders[holders != high][:_PARTNERS].tolist()
        return [b for b in dict.fromkeys(bins) if self._loads[b] < self._loads[high]]

    def compare(self, high: int, low: int, pairs: bool) -> _Exchange | None:
        """The best exchange between two bins; None where none lowers the heavier one.

        Args:
            pairs: whether two items are offered for one, rather than one or none.
        """
        givers, takers = self._members[high], self._members[low]
        offers = self._pairs(takers) if pairs else takers[:, None]
        weights = self._weights[offers].sum(axis=1)
        sizes = self._tokens[offers].sum(axis=1)
        if pairs:
            order = weights.argsort(kind="stable")
            offers, weights, sizes = offers[order], weights[order], sizes[order]
        elif not self._equal_counts or self._counts[high] > self._counts[low]:
            # For nothing: the lightest offer. It changes how many items the bins hold.
            weights, sizes = np.append(0, weights), np.append(0, sizes)
        if not len(weights):
            return None
        heavy, light = int(self._loads[high]), int(self._loads[low])
        asked = self._weights[givers]
        reach = 1 if self._cap is None else _NEIGHBOURS
        suited = weights.searchsorted(asked - (heavy - light) // 2)
        choice = (suited[:, None] + np.arange(-reach, reach)).clip(0, len(weights) - 1)
        shift = asked[:, None] - weights[choice]
        peak = np.maximum(heavy - shift, light + shift)
        if self._cap is not None:
            more = self._tokens[givers][:, None] - sizes[choice]
            room, spare = self._cap - self._used[low], self._cap - self._used[high]
            peak[(more > room) | (-more > spare)] = _BARRED
        row, column = divmod(int(peak.argmin()), peak.shape[1])
        if peak[row, column] >= heavy:
            return None
        chosen = int(choice[row, column]) - (len(weights) - len(offers))
        taken = tuple(offers[chosen].tolist()) if chosen >= 0 else ()
        return _Exchange(int(peak[row, column]), int(givers[row]), taken)

    def _pairs(self, items: Int64Array) -> Int64Array:
        """[pairs, 2]; none where counts must stay, or where there are too many."""
        if self._equal_counts or len(items) > _PAIRED:
            return np.empty((0, 2), np.int64)
        first, second = np.triu_indices(len(items), 1)
        return np.stack([items[first], items[second]], axis=1)

    def make(self, high: int, low: int, exchange: _Exchange) -> None:
        self._hand_over(exchange.given, high, low)
        for item in exchange.taken:
            self._hand_over(item, low, high)

    def _hand_over(self, item: int, source: int, target: int) -> None:
        self.bin_of[item] = target
        for b, sign in ((source, -1), (target, 1)):
            self._loads[b] += sign * self._weights[item]
            self._used[b] += sign * self._tokens[item]
            self._counts[b] += sign
        left, grown = self._members[source], self._members[target]
        self._members[source] = left[left != item]
        at = self._weights[grown].searchsorted(self._weights[item])
        self._members[target] = np.concatenate([grown[:at], [item], grown[at:]])
