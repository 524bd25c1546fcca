"""Whole documents into micro-batches that leave no room: what fixed-length packing asks for.

Where the documents of a global batch are to fill its windows to the last token, placing them one by
one ends with some that fit nowhere, and to find any packing at all is the hard part. But there are
very many ways to choose a few short documents of either of two micro-batches, and so nearly always
some whose difference is exactly what one has too much and the other has room for. So documents are
placed with least work first, and no heed to the cap; then micro-batches that hold too much swap up
to two documents for up to two of another until all is under the cap. It moves short documents,
which are hardly any work, so the packing stays even.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.packing.lpt_fill import level_fill

__all__ = ["tight_fill"]


_MOST = 48
"""Documents of a micro-batch, the shortest ones, of which those that are swapped are taken."""
_ROUNDS = 16
"""Swaps for each micro-batch before it is given up."""


def tight_fill(
    lengths: Int64Array, works: Int64Array, bins: int, max_tokens: int
) -> Int64Array | None:
    """
    Args:
        lengths: [documents] int64, none above `max_tokens`.
        works: [documents] int64 work of each.

    Returns:
        [documents] micro-batch of each, none over `max_tokens`; None where no such packing was
        found, which does not prove that there is none.
    """
    if int(lengths.sum()) > bins * max_tokens:
        return None
    order = np.argsort(-works, kind="stable")
    placed = level_fill(lengths, works, order, bins, max_tokens)
    # Those without room go where there is most of it, too much as it is.
    held = np.bincount(placed[placed >= 0], weights=lengths[placed >= 0], minlength=bins)
    held = held.astype(np.int64)
    for document in np.flatnonzero(placed < 0).tolist():
        placed[document] = held.argmin()
        held[placed[document]] += lengths[document]
    for _ in range(_ROUNDS * bins):
        excess = held - max_tokens
        source = int(excess.argmax())
        if excess[source] <= 0:
            return placed
        out = _Few(lengths, works, placed, source)
        moved = 0
        for target in np.argsort(excess, kind="stable").tolist():
            room = -int(excess[target])
            if room <= 0:
                break
            back = _Few(lengths, works, placed, target)
            there, here, tokens = _swap(out, back, int(excess[source]), room)
            if tokens > moved:
                best, moved = (target, there, here), tokens
            if tokens >= min(int(excess[source]), room):
                break
        if not moved:
            return None
        target, there, here = best
        placed[there], placed[here] = target, source
        held[source] -= moved
        held[target] += moved
    return None


def _swap(out: _Few, back: _Few, excess: int, room: int) -> tuple[list[int], list[int], int]:
    """Documents to swap, and the tokens that move: all that are too many if there is room, else as
    many as there is room for; or as near to that as can be, at the least 0."""
    by_tokens = np.argsort(back.tokens, kind="stable")
    sums = back.tokens[by_tokens]
    # For each choice that may go, the least that must come back: then most tokens move.
    least = np.searchsorted(sums, out.tokens - room, side="left")
    usable = np.flatnonzero(least < len(sums))
    ends = by_tokens[least[usable]]
    tokens = out.tokens[usable] - back.tokens[ends]
    enough = tokens >= min(excess, room)
    if enough.any():
        change = np.abs(out.works[usable] - back.works[ends])
        best = int(np.where(enough, change, change.max() + 1).argmin())
    else:
        best = int(tokens.argmax())
    there, here = out.documents(int(usable[best])), back.documents(int(ends[best]))
    return there, here, int(tokens[best])


class _Few:
    """All choices of up to two of the short documents of a micro-batch."""

    def __init__(
        self, lengths: Int64Array, works: Int64Array, placed: Int64Array, number: int
    ) -> None:
        mine = np.flatnonzero(placed == number)
        mine = mine[np.argsort(lengths[mine], kind="stable")][:_MOST]
        # The last place stands for no document.
        none = len(mine)
        self._members = np.append(mine, -1)
        self._first, self._second = np.triu_indices(none + 1)
        twice = (self._first == self._second) & (self._first < none)
        self._first, self._second = self._first[~twice], self._second[~twice]
        tokens, work = np.append(lengths[mine], 0), np.append(works[mine], 0)
        self.tokens: Int64Array = tokens[self._first] + tokens[self._second]
        self.works: Int64Array = work[self._first] + work[self._second]

    def documents(self, choice: int) -> list[int]:
        chosen = self._members[[self._first[choice], self._second[choice]]].tolist()
        return [document for document in chosen if document >= 0]
