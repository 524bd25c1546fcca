"""Original packing: documents laid end to end in order of arrival, cut every `context` tokens.

The part of a document beyond the cut begins the next window as a document of its own. Invariant:
every window but the last holds exactly `context` tokens, and every token is in one window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.pieces import Pieces

__all__ = ["PackingWindows", "cut_at_windows"]


@dataclass(frozen=True)
class PackingWindows:
    """Pieces and the windows they fill."""

    pieces: Pieces
    windows: Groups
    """One group per window, of positions in `pieces`, ascending."""


def cut_at_windows(lengths: Int64Array, context: int) -> PackingWindows:
    """
    Args:
        lengths: [documents] int64, each positive.
        context: tokens of a window.
    """
    check_at_least(1, context=context)
    if not len(lengths):
        return PackingWindows(Pieces.whole(lengths), Groups.empty())
    starts = lengths.cumsum() - lengths
    total = int(starts[-1] + lengths[-1])
    cuts = np.arange(0, total, context, dtype=np.int64)
    # The stream is cut where a document or a window begins.
    begins = np.unique(np.concatenate([starts, cuts]))
    ends = np.append(begins[1:], total)
    documents = np.searchsorted(starts, begins, side="right") - 1
    pieces = Pieces(documents, begins - starts[documents], ends - starts[documents])
    firsts = np.searchsorted(begins, cuts)
    offsets = np.append(firsts, len(begins)).astype(np.int64)
    return PackingWindows(pieces, Groups(np.arange(len(begins), dtype=np.int64), offsets))
