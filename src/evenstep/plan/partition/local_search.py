"""Moves and swaps that lower the largest load of a partition.

Each round, the most loaded bin gives an item to one of the least loaded: for a cheaper item, for
two, or for nothing. The exchange that is made is the one after which the larger load of the two
bins is smallest. Invariant: that is strictly less than the largest load was, so no partition gets
worse; and token caps stay kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.items import largest_first, sums

_PARTNERS = 8
"""Bins that the most loaded one is compared with in a round."""
_PAIRED = 48
"""Items in a bin up to which two are offered for one. In larger bins single ones do."""
_NEIGHBOURS = 8
"""Offers on either side of the best one that are tried too, as a cap may forbid that one."""
_BARRED = np.iinfo(np.int64).max
_NOTHING = -1


@dataclass(frozen=True)
class _Exchange:
    """One item of the more loaded bin for none, one or two of the other."""

    peak: int
    """The larger load of both bins afterwards."""
    given: int
    taken: tuple[int, ...]


def improve(
    bin_of: Int64Array,
    costs: Int64Array,
    bins: int,
    *,
    goal: int,
    tokens: Int64Array | None = None,
    cap: int | None = None,
) -> Int64Array:
    """Makes exchanges until the largest load is low enough, or none lowers it.

    Args:
        bin_of: [items] the bin of each, within the cap.
        costs: [items] not negative.
        bins: number of bins.
        goal: largest load that is low enough.
        tokens: [items]; needed with `cap`.
        cap: tokens that a bin holds.

    Returns:
        [items] the bin of each afterwards. At most 64 + 2 x bins, and no more than 256, pairs of
        bins are compared, except that a round that was started is finished.
    """
    loads = sums(costs, bin_of, bins)
    if not len(costs) or loads.max() <= goal:
        return bin_of
    held = np.zeros_like(costs) if tokens is None else tokens
    state = _Bins(bin_of, costs, loads, held, cap)
    left = min(64 + 2 * bins, 256)
    while left > 0:
        high = int(loads.argmax())
        largest = int(loads[high])
        if largest <= goal:
            break
        best: tuple[int, _Exchange] | None = None
        partners = state.partners(high)
        for pairs in (False, True):
            for low in partners if best is None else ():
                left -= 1
                found = state.compare(high, low, pairs)
                if found is not None and (best is None or found.peak < best[1].peak):
                    best = low, found
                    if found.peak <= max(goal, largest - (largest - int(loads[low])) // 4):
                        break  # at least half of what an exchange of these two bins can gain
        if best is None:
            break
        state.make(high, *best)
    return state.bin_of


class _Bins:
    """The bins while exchanges are made."""

    def __init__(
        self,
        bin_of: Int64Array,
        costs: Int64Array,
        loads: Int64Array,
        tokens: Int64Array,
        cap: int | None,
    ) -> None:
        self.bin_of: Int64Array = bin_of.copy()
        self._loads = loads
        counts = np.bincount(bin_of, minlength=len(loads))
        self._cap = cap
        self._used = sums(tokens, bin_of, len(loads))
        # [items + 1], so that `_NOTHING` costs and holds nothing.
        self._costs, self._tokens = np.append(costs, 0), np.append(tokens, 0)
        order = largest_first(costs)[::-1]
        keys = (bin_of[order] << 32) + np.arange(len(order))
        keys.sort()
        self._members = np.split(order[keys & 0xFFFFFFFF], counts.cumsum()[:-1])
        """[bins] positions of the items in each, cheapest first."""
        self._cheapest_first = order

    def partners(self, high: int) -> list[int]:
        """Less loaded bins: those with the smallest loads, and those with the cheapest items."""
        least_loaded = self._loads.argsort(kind="stable")[:_PARTNERS]
        holders = self.bin_of[self._cheapest_first[: len(self._members[high]) + _PARTNERS]]
        bins = least_loaded.tolist() + holders[holders != high][:_PARTNERS].tolist()
        return [b for b in dict.fromkeys(bins) if self._loads[b] < self._loads[high]]

    def compare(self, high: int, low: int, pairs: bool) -> _Exchange | None:
        """The best exchange between two bins; None where none lowers the larger load.

        The best shift of load is half the difference of both. With loads of 20 and 10 it is 5, so
        for an item that costs 9 an offer of 4 suits. If offers cost 2, 3 and 6, those around 4
        are tried: 3 leaves 14 and 16, and 6 leaves 17 and 13, so the 3 is taken.

        Args:
            pairs: whether `low` offers two items for one, rather than one or none.
        """
        given = self._members[high]
        offers = self._offers(low, pairs)  # [offers, items of each], cheapest first
        if not len(offers):
            return None
        costs, asked = self._costs[offers].sum(axis=1), self._costs[given]
        larger, smaller = int(self._loads[high]), int(self._loads[low])
        suited = costs.searchsorted(asked - (larger - smaller) // 2)
        reach = 1 if self._cap is None else _NEIGHBOURS
        # choice, shift, peak: [items given, offers around the one that suits]
        choice = (suited[:, None] + np.arange(-reach, reach)).clip(0, len(offers) - 1)
        shift = asked[:, None] - costs[choice]
        peak = np.maximum(larger - shift, smaller + shift)
        if self._cap is not None:
            sizes = self._tokens[offers].sum(axis=1)
            more = self._tokens[given][:, None] - sizes[choice]
            room, spare = self._cap - self._used[low], self._cap - self._used[high]
            peak[(more > room) | (-more > spare)] = _BARRED
        row, column = divmod(int(peak.argmin()), peak.shape[1])
        if peak[row, column] >= larger:
            return None
        taken = [item for item in offers[choice[row, column]].tolist() if item != _NOTHING]
        return _Exchange(int(peak[row, column]), int(given[row]), tuple(taken))

    def _offers(self, low: int, pairs: bool) -> Int64Array:
        """[offers, 1 or 2] the items that `low` gives in each offer, cheapest offer first."""
        items = self._members[low]
        if not pairs:
            return np.append(_NOTHING, items)[:, None]
        if len(items) > _PAIRED:
            return np.empty((0, 2), np.int64)
        first, second = np.triu_indices(len(items), 1)
        offers = np.stack([items[first], items[second]], axis=1)
        order = self._costs[offers].sum(axis=1).argsort(kind="stable")
        ordered: Int64Array = offers[order]
        return ordered

    def make(self, high: int, low: int, exchange: _Exchange) -> None:
        self._move(exchange.given, high, low)
        for item in exchange.taken:
            self._move(item, low, high)

    def _move(self, item: int, source: int, target: int) -> None:
        self.bin_of[item] = target
        for b, sign in ((source, -1), (target, 1)):
            self._loads[b] += sign * self._costs[item]
            self._used[b] += sign * self._tokens[item]
        left, grown = self._members[source], self._members[target]
        self._members[source] = left[left != item]
        at = self._costs[grown].searchsorted(self._costs[item])
        self._members[target] = np.concatenate([grown[:at], [item], grown[at:]])
