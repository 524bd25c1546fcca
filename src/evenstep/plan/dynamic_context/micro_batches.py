"""Which parcels form a micro-batch: documents of like length together.

Where ranks have equal work, one that shares a long document holds few tokens, and one with short
documents many: as many as memory allows. So a micro-batch of both leaves memory of the former
unused, or spreads the long document over more ranks than it needs. Hence the longest documents
come first, next to each other, and every micro-batch is filled up with a fair sample of the short
ones, whose small parcels even out its ranks. Micro-batches have equal tokens, or for a pipeline
equal cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.plan.dynamic_context.options import DynamicContext
from evenstep.plan.dynamic_context.parcels import Parcels

FILL = 0.95
"""Share of the memory of a micro-batch that its documents can be counted on to fill."""
_SHORT = 4
"""Parcels are short if this many fit on a rank."""
_LONG_SHARE = 0.9
"""The largest share of a micro-batch's tokens in long documents, if there are several."""
_SAMPLES = 64
"""Fair samples that the short parcels are divided in."""


@dataclass(frozen=True)
class Dealt:
    """How far micro-batches have been dealt."""

    longs: int = 0
    """Long parcels in the micro-batches so far."""
    shorts: int = 0
    """Short ones."""


@dataclass(frozen=True, eq=False)
class Dealer:
    """Deals the parcels of a step to one micro-batch after the other."""

    parcels: Parcels
    options: DynamicContext

    def shares(self, dealt: Dealt, left: int) -> list[int]:
        """Tokens that the next of `left` micro-batches may have: as many as the others, or fewer,
        as far as the others have room for the rest."""
        rest = int(self._long_tokens[-1] + self._short_tokens[-1])
        rest -= int(self._long_tokens[dealt.longs] + self._short_tokens[dealt.shorts])
        equal = -(-rest // left)
        full = int(FILL * self.options.capacity)
        least = rest - int((left - 1) * FILL * self.options.capacity)
        first = []
        if self.options.pipeline and left > 1:
            first = [self._of_equal_cost(dealt, left, max(least, 1), max(least, full))]
        if left == 1 or least >= equal:
            return [*first, equal]
        least = max(least, equal // 4)
        return [*first, equal, (equal + least) // 2, least]

    def _of_equal_cost(self, dealt: Dealt, left: int, low: int, high: int) -> int:
        """Tokens, from `low` to `high`, with which a micro-batch costs its part of what is left."""
        started = self._long_cost[dealt.longs] + self._short_cost[dealt.shorts]
        wanted = (self._long_cost[-1] + self._short_cost[-1] - started) / left
        while low < high:
            middle = (low + high) // 2
            end = self._end(dealt, middle)
            if self._long_cost[end.longs] + self._short_cost[end.shorts] - started > wanted:
                high = middle
            else:
                low = middle + 1
        return low

    def take(self, dealt: Dealt, share: int, last: bool) -> tuple[Int64Array, Dealt]:
        """Parcels of the next micro-batch, ascending, and how far that goes.

        Args:
            share: tokens that it has, at most, except for one document that has more.
            last: whether it takes all that are left.
        """
        end = Dealt(len(self._long_tokens) - 1, len(self._short_tokens) - 1)
        if not last:
            end = self._end(dealt, share)
        own = np.sort(self._short[dealt.shorts : end.shorts])
        return np.concatenate((np.arange(dealt.longs, end.longs), own)), end

    def _end(self, dealt: Dealt, share: int) -> Dealt:
        """How far a micro-batch of `share` tokens goes."""
        long_end = _until(self._long_tokens, dealt.longs, _LONG_SHARE * share)
        longs = min(max(long_end, dealt.longs + 1), len(self._long_tokens) - 1)
        left = share - int(self._long_tokens[longs] - self._long_tokens[dealt.longs])
        return Dealt(longs, _until(self._short_tokens, dealt.shorts, max(left, 0)))

    @cached_property
    def _longs(self) -> int:
        limit = self.options.tokens_per_rank // _SHORT
        return int(np.searchsorted(-self.parcels.longest, -limit))

    @cached_property
    def _long_tokens(self) -> Int64Array:
        return prefix_sums(self.parcels.tokens[: self._longs])

    @cached_property
    def _long_cost(self) -> Int64Array:
        return prefix_sums(self.parcels.cost[: self._longs])

    @cached_property
    def _short_cost(self) -> Int64Array:
        return prefix_sums(self.parcels.cost[self._short])

    @cached_property
    def _short(self) -> Int64Array:
        """The short parcels in an order of which every stretch is a fair sample: every 64th, then
        the ones after these, and so on."""
        count = len(self.parcels) - self._longs
        rows = -(-count // _SAMPLES)
        order = np.arange(rows * _SAMPLES).reshape(rows, _SAMPLES).T.ravel()
        sampled: Int64Array = order[order < count] + self._longs
        return sampled

    @cached_property
    def _short_tokens(self) -> Int64Array:
        return prefix_sums(self.parcels.tokens[self._short])


def _until(sums: Int64Array, begin: int, most: float) -> int:
    """The last position up to which no more than `most` is added to the sum at `begin`."""
    return int(np.searchsorted(sums, sums[begin] + most, side="right")) - 1
