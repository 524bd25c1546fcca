"""Original packing: documents laid end to end in order of arrival, cut every `context` tokens.

What a cut leaves of a document begins the next window as another document. Invariant: every window
except the last holds exactly `context` tokens, and every token is in one window.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least
from evenstep.plan.groups.groups import Groups
from evenstep.plan.packing.pieces import Pieces

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
