"""Fixed-length packing: every micro-batch holds exactly `context` tokens, and costs are as equal as
that allows (WLB-LLM, section 3.2). The yardstick for packing by cost.

The documents of one or more global batches are placed from the longest to the shortest, each in the
window of least cost that has room. If no window has room for a whole document it is cut, as every
window must be full. Windows of similar cost then form a global batch, so with more batches to
choose from, long documents meet others like them.

Invariant: every token is in one window, and all windows except the last are full.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import SampleError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.pieces import Pieces
from evenstep.plan.packing.window_packing import PackingWindows


def fixed_length(
    lengths: Int64Array, context: int, *, cost: DocumentCost | None = None
) -> PackingWindows:
    """Packs documents into as few windows as hold them.

    Documents of 7, 6, 5 and 2 tokens at ``context=10`` make two windows. 7 and 6 go to one each;
    5 fits in neither and is set aside; 2 goes beside 6, which costs less than 7. Then 5 is cut to
    fill the gaps, 3 tokens beside 7, which now costs less, and 2 beside 6 and 2.

    Args:
        lengths: [documents] int64 of all global batches together, none above `context`.
        context: tokens of a window.

    Returns:
        The windows, the most costly first: the first `micro_batches` of them are the first global
        batch, and so on. If the tokens do not fill the last window, that one comes last.

    Raises:
        SampleError: a document is longer than a window.
    """
    check_at_least(1, context=context)
    if not len(lengths):
        return PackingWindows(Pieces.whole(lengths), Groups.empty())
    if int(lengths.max()) > context:
        longest = int(lengths.argmax())
        raise SampleError(
            f"document {longest} has {lengths[longest]:,} tokens, over the window of {context:,}; "
            "cut it first (`cut_at_windows` or `cut_long`)"
        )
    windows = _OpenWindows(int(lengths.sum()), context, cost or DocumentCost())
    windows.fill_gaps(windows.place_whole(lengths))
    return windows.packed()


class _OpenWindows:
    """Windows as they are filled."""

    def __init__(self, total: int, context: int, cost: DocumentCost) -> None:
        count = -(-total // context)
        last = total - (count - 1) * context
        self._cost = cost
        self._room = [context] * (count - 1) + [last]
        self._loads = [0] * count
        self._full = count if last == context else count - 1
        """Windows that will be full. The last one may not be: it gets no whole documents, only what
        is cut off in the end."""
        self._made: list[tuple[int, int, int, int]] = []
        """(window, document, begin, end) of each piece."""

    def place_whole(self, lengths: Int64Array) -> list[tuple[int, int]]:
        """Places documents by LPT as far as they fit; returns (document, length) of the others."""
        heap = [(0, window) for window in range(self._full)]  # (load, window)
        unplaced: list[tuple[int, int]] = []
        for document in np.argsort(-lengths, kind="stable").tolist():
            length = int(lengths[document])
            too_full: list[tuple[int, int]] = []
            while heap:
                load, window = heappop(heap)
                if self._room[window] >= length:
                    self._put(window, document, 0, length)
                    heappush(heap, (self._loads[window], window))
                    break
                too_full.append((load, window))
            else:
                unplaced.append((document, length))
            for load, window in too_full:
                if self._room[window]:
                    heappush(heap, (load, window))
        return unplaced

    def fill_gaps(self, documents: list[tuple[int, int]]) -> None:
        """Cuts (document, length) into the room that is left, windows of least cost first."""
        gaps = sorted((self._loads[w], w) for w, room in enumerate(self._room) if room)
        for document, length in documents:
            begin = 0
            while begin < length:
                window = gaps[0][1]
                end = min(begin + self._room[window], length)
                self._put(window, document, begin, end)
                begin = end
                if not self._room[window]:
                    gaps.pop(0)

    def packed(self) -> PackingWindows:
        """The windows by descending cost, one that is not full last."""
        window, document, begin, end = np.array(self._made, np.int64).T  # each [pieces]
        numbers = np.arange(len(self._loads))
        descending = np.lexsort((-np.array(self._loads), numbers >= self._full))
        rank = np.empty(len(numbers), np.int64)
        rank[descending] = numbers
        # Pieces are in order of documents, as everywhere; windows name their positions, ascending.
        order = np.lexsort((begin, document))
        pieces = Pieces(document[order], begin[order], end[order])
        return PackingWindows(pieces, Groups.by_label(rank[window[order]]))

    def _put(self, window: int, document: int, begin: int, end: int) -> None:
        self._room[window] -= end - begin
        self._loads[window] += self._cost.of_document(end - begin)
        self._made.append((window, document, begin, end))
