"""Fixed-length packing: every micro-batch holds exactly `context` tokens, and works as equally as
that allows (WLB-LLM, section 3.2). The yardstick for packing by work.

The documents of one or more global batches are placed from the longest to the shortest, each in the
window with least work that has room. Where no window has room for a whole one it is cut, as every
window must be full. Windows of like work then make up a global batch, so with more batches to
choose from, long documents meet their like.

Invariant: every token is in one window, and all windows but the last are full.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import SampleError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.document_cost import DocumentCost
from evenstep.plan.packing.pieces import Pieces
from evenstep.plan.packing.window_packing import PackingWindows

__all__ = ["fixed_length"]


def fixed_length(
    lengths: Int64Array, context: int, *, workload: DocumentCost | None = None
) -> PackingWindows:
    """Packs documents into as few windows as hold them.

    Args:
        lengths: [documents] int64 of all global batches together, none above `context`.
        context: tokens of a window.

    Returns:
        The windows, that with most work first: the first `micro_batches` of them are the first
        global batch, and so on. One that is not full, where the tokens do not come out even, is
        last.

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
    workload = workload or DocumentCost()
    total = int(lengths.sum())
    count = -(-total // context)
    rooms = [context] * (count - 1) + [total - (count - 1) * context]
    # The last window, where smaller than the others, is filled by what is cut off, at the very end.
    open_windows = count if rooms[-1] == context else count - 1
    heap = [(0, window) for window in range(open_windows)]
    heapify(heap)
    levels = [0] * count
    made: list[tuple[int, int, int, int]] = []  # window, document, begin, end

    def put(window: int, document: int, begin: int, end: int) -> None:
        rooms[window] -= end - begin
        levels[window] += workload.of_document(end - begin)
        made.append((window, document, begin, end))

    uncut: list[tuple[int, int]] = []
    for document in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[document])
        full: list[tuple[int, int]] = []
        while heap:
            level, window = heappop(heap)
            if rooms[window] >= length:
                put(window, document, 0, length)
                heappush(heap, (levels[window], window))
                break
            full.append((level, window))
        else:
            uncut.append((document, length))
        for entry in full:
            if rooms[entry[1]]:
                heappush(heap, entry)
    # What fits nowhere as a whole fills the gaps, in windows with least work first.
    gaps = sorted((levels[window], window) for window in range(count) if rooms[window])
    for document, length in uncut:
        begin = 0
        while begin < length:
            window = gaps[0][1]
            end = min(begin + rooms[window], length)
            put(window, document, begin, end)
            begin = end
            if not rooms[window]:
                gaps.pop(0)
    return _windows(made, levels, short=count - 1 if open_windows < count else -1)


def _windows(
    made: list[tuple[int, int, int, int]], levels: list[int], short: int
) -> PackingWindows:
    window, document, begin, end = np.array(made, np.int64).T
    falling = np.lexsort((-np.array(levels), np.arange(len(levels)) == short))
    place = np.empty(len(levels), np.int64)
    place[falling] = np.arange(len(levels))
    # Pieces by document, as everywhere; windows name their positions, ascending.
    order = np.lexsort((begin, document))
    pieces = Pieces(document[order], begin[order], end[order])
    return PackingWindows(pieces, Groups.by_label(place[window[order]]))
