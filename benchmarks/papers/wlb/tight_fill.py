"""Whole documents into micro-batches that have no room to spare, as fixed-length packing needs.

Where documents are to fill micro-batches to the last token, greedy placement ends with some that
fit nowhere, and to find any packing at all is the hard part. But there are very many ways to choose
a few short documents from each of two micro-batches, and so nearly always two choices that differ
by exactly the tokens that one has too many of and the other has room for. So documents are placed
by least cost first, whatever the cap; then micro-batches over the cap swap up to two documents for
up to two of another until all are under it. Swaps move short documents, which cost next to nothing,
so the packing stays even.

Two micro-batches of at most 10 tokens hold ``[7, 4]``, one too many, and ``[6, 3]``, with room for
one. To swap 7 for 6 or 4 for 3 moves exactly that; 4 for 3 changes the costs less.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.partition.greedy import lpt_fill

_SHORTEST = 48
"""The shortest documents of a micro-batch that may be swapped: some 1,200 choices of up to two."""
_SWAPS = 16
"""Swaps for each micro-batch before the search ends without a packing."""


def tight_fill(
    lengths: Int64Array, costs: Int64Array, micro_batches: int, max_tokens: int
) -> Int64Array | None:
    """Places every document, or none.

    Args:
        lengths: [documents] int64, none above `max_tokens`.
        costs: [documents] int64 cost of each.

    Returns:
        [documents] micro-batch of each, none over `max_tokens`; None if no such packing was found,
        which does not prove that there is none.
    """
    if int(lengths.sum()) > micro_batches * max_tokens:
        return None
    placed = _over_the_cap(lengths, costs, micro_batches, max_tokens)
    tokens = np.zeros(micro_batches, np.int64)
    np.add.at(tokens, placed, lengths)
    for _ in range(_SWAPS * micro_batches):
        excess = tokens - max_tokens  # [micro-batches] negative where there is room
        source = int(excess.argmax())
        if excess[source] <= 0:
            return placed
        given = _Choices(lengths, costs, placed, source)
        moved = 0
        for target in np.argsort(excess, kind="stable").tolist():
            room = -int(excess[target])
            if room <= 0:
                break
            back = _Choices(lengths, costs, placed, target)
            there, here, change = _best_swap(given, back, int(excess[source]), room)
            if change > moved:
                best, moved = (target, there, here), change
            if change >= min(int(excess[source]), room):
                break
        if not moved:
            return None
        target, there, here = best
        placed[there], placed[here] = target, source
        tokens[source] -= moved
        tokens[target] += moved
    return None


def _over_the_cap(
    lengths: Int64Array, costs: Int64Array, micro_batches: int, max_tokens: int
) -> Int64Array:
    """[documents] micro-batch of each: by `lpt_fill`, and what that leaves out where most room is,
    although that is too little."""
    order = np.argsort(-costs, kind="stable")
    placed = lpt_fill(lengths, costs, order, micro_batches, max_tokens)
    tokens = np.zeros(micro_batches, np.int64)
    np.add.at(tokens, placed[placed >= 0], lengths[placed >= 0])
    for document in np.flatnonzero(placed < 0).tolist():
        placed[document] = tokens.argmin()
        tokens[placed[document]] += lengths[document]
    return placed


def _best_swap(
    given: _Choices, back: _Choices, excess: int, room: int
) -> tuple[list[int], list[int], int]:
    """Documents to swap in either direction, and the tokens that move.

    They are `excess` or `room`, whichever is less, if any swap moves as many, and of those swaps
    the one that changes cost least; else as many as possible.
    """
    by_tokens = np.argsort(back.tokens, kind="stable")
    ascending = back.tokens[by_tokens]
    # For each choice given, the fewest tokens that must come back, so that most tokens move.
    fewest = np.searchsorted(ascending, given.tokens - room, side="left")
    usable = np.flatnonzero(fewest < len(ascending))
    partners = by_tokens[fewest[usable]]  # [usable]
    tokens = given.tokens[usable] - back.tokens[partners]
    enough = tokens >= min(excess, room)
    if enough.any():
        change = np.abs(given.costs[usable] - back.costs[partners])
        best = int(np.where(enough, change, change.max() + 1).argmin())
    else:
        best = int(tokens.argmax())
    there, here = given.documents(int(usable[best])), back.documents(int(partners[best]))
    return there, here, int(tokens[best])


class _Choices:
    """All choices of up to two of the short documents of a micro-batch."""

    def __init__(
        self, lengths: Int64Array, costs: Int64Array, placed: Int64Array, number: int
    ) -> None:
        own = np.flatnonzero(placed == number)
        own = own[np.argsort(lengths[own], kind="stable")][:_SHORTEST]
        none = len(own)  # the index that stands for no document
        self._members = np.append(own, -1)
        first, second = np.triu_indices(none + 1)
        twice = (first == second) & (first < none)
        self._first, self._second = first[~twice], second[~twice]
        own_tokens, own_costs = np.append(lengths[own], 0), np.append(costs[own], 0)
        self.tokens: Int64Array = own_tokens[self._first] + own_tokens[self._second]
        """[choices]"""
        self.costs: Int64Array = own_costs[self._first] + own_costs[self._second]
        """[choices]"""

    def documents(self, choice: int) -> list[int]:
        chosen = self._members[[self._first[choice], self._second[choice]]].tolist()
        return [document for document in chosen if document >= 0]
