"""A second long document for micro-batches that short ones could not level.

Where long documents go together, one for each micro-batch, the shortest of them is far less work
than the longest, and the cap leaves no room for as many short documents as it would take to make up
for that. Another long document has more work for its tokens. Invariant: no micro-batch comes to
exceed the cap, or the work of the longest document, and together they take no more tokens than are
left.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array

__all__ = ["second_documents"]


def second_documents(
    lengths: Int64Array,
    works: Int64Array,
    run: Int64Array,
    waiting: Int64Array,
    *,
    cap: int,
    left: int,
    short_tokens: float,
    density: float,
) -> dict[int, int]:
    """
    Args:
        lengths: [documents] tokens of all that wait.
        works: [documents] work of each; the longer, the more.
        run: positions of the long documents that go, one for each micro-batch.
        waiting: positions of long documents, the shortest first; those of `run` may be among them.
        cap: tokens that a micro-batch holds.
        left: tokens that the iteration holds besides the run.
        short_tokens: of all short documents together.
        density: their work per token.

    Returns:
        Place in `run` -> position of the document that goes with it. Of the documents that have
        room and do not go beyond the longest of the run, each gets the longest, those with least
        work first; only where short documents would not be enough.
    """
    own, held = works[run], lengths[run]
    top = int(own.max())
    room = np.minimum(cap - held, left)
    scarce = float((top - own).sum()) > density * min(short_tokens, float(left))
    wanting = np.flatnonzero(scarce | (own + density * room < top))
    if not len(wanting):
        return {}
    by_length = lengths[waiting]
    # Work rises with length, so all documents up to here have room and do not go beyond the top.
    reach = np.minimum(
        np.searchsorted(works[waiting], top - own[wanting], side="right"),
        np.searchsorted(by_length, room[wanting], side="right"),
    ).tolist()
    order, tokens = waiting.tolist(), by_length.tolist()
    used = set(run.tolist())
    second: dict[int, int] = {}
    for which in np.argsort(own[wanting], kind="stable").tolist():
        at = reach[which] - 1
        while at >= 0 and (order[at] in used or tokens[at] > left):
            at -= 1
        if at >= 0:
            used.add(order[at])
            second[int(wanting[which])] = order[at]
            left -= tokens[at]
    return second
