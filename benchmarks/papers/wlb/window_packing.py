"""Windows of exactly `context` tokens, to compare with: cut in order of arrival, or of equal cost.

`cut_at_windows` is original packing: documents are laid end to end and cut at every window. What a
cut leaves of a document begins the next window as another document.

`fixed_length` makes costs as equal as full windows allow (WLB-LLM, section 3.2). The documents of
one or more global batches are placed from the longest to the shortest, each in the window of least
cost that has room. If no window has room for a whole document, it is cut. Windows of similar cost
then form a global batch, so with more batches to choose from, long documents meet others like them.

Invariant of both: every token is in one window, and all windows except the last are full.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError, SampleError
from evenstep.plan.groups import Groups
from evenstep.plan.packing.pieces import Pieces
from evenstep.plan.packing.step_limits import DocumentCost
from evenstep.plan.value_checks import check_at_least

_MOST_WINDOWS = 2**27  # some 10 GiB


@dataclass(frozen=True)
class PackingWindows:
    """Pieces and the windows they fill."""

    pieces: Pieces
    windows: Groups
    """One group per window, of positions in `pieces`, ascending."""


def cut_at_windows(lengths: Int64Array, context: int) -> PackingWindows:
    """Cuts the stream of documents at every window.

    Documents of 3 and 5 tokens at ``context=4`` make the pieces of 3, 1 and 4 tokens and the
    windows ``[3, 1], [4]``.

    Args:
        lengths: [documents] int64, each positive.
        context: tokens of a window.

    Raises:
        ConfigurationError: there would be more windows than 2**27, which memory could not hold.
    """
    check_at_least(1, context=context)
    if not len(lengths):
        return PackingWindows(Pieces.whole(lengths), Groups.empty())
    starts = lengths.cumsum() - lengths  # [documents] in the stream
    total = int(starts[-1] + lengths[-1])
    if total > _MOST_WINDOWS * context:
        raise ConfigurationError(
            f"{total:,} tokens fill {-(-total // context):,} windows of {context:,}, more than the "
            f"{_MOST_WINDOWS:,} that are planned at once: give fewer documents or a longer context"
        )
    cuts = np.arange(0, total, context, dtype=np.int64)  # [windows] in the stream
    # A piece begins where a document or a window begins.
    begins = np.unique(np.concatenate([starts, cuts]))  # [pieces]
    ends = np.append(begins[1:], total)
    documents = np.searchsorted(starts, begins, side="right") - 1
    pieces = Pieces(documents, begins - starts[documents], ends - starts[documents])
    firsts = np.searchsorted(begins, cuts)
    offsets = np.append(firsts, len(begins)).astype(np.int64)
    return PackingWindows(pieces, Groups(np.arange(len(begins), dtype=np.int64), offsets))


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
