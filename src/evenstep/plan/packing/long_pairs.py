"""A second long document for micro-batches that short ones could not balance.

Where long documents are planned together, one in each micro-batch, the shortest may cost far less
than the longest, and the cap leaves no room for as many short documents as would make up for that.
Another long document costs more for its tokens. Invariant: no micro-batch comes to exceed the cap,
or the cost of the longest document, and the added documents have no more tokens than are left.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array


def pair_long_documents(
    lengths: Int64Array,
    costs: Int64Array,
    run: Int64Array,
    waiting: Int64Array,
    *,
    cap: int,
    left: int,
    short_tokens: float,
    density: float,
) -> dict[int, int]:
    """Gives documents of a run a partner where short documents would not be enough.

    With a cap of 60, no short documents, and lengths 60, 37, 36 in the run and 24, 22, 20 waiting:
    36 costs least and chooses first; it has room for 24, and takes it. 37 has room for 23, and
    takes 22. 60 has no room.

    Args:
        lengths: [documents] tokens of all that wait.
        costs: [documents] cost of each; the longer, the more.
        run: positions of the long documents of the step, one for each micro-batch.
        waiting: positions of long documents, the shortest first; may include those of `run`.
        cap: tokens that a micro-batch holds.
        left: tokens that the step holds besides the run.
        short_tokens: tokens of all short documents together.
        density: cost per token of short documents.

    Returns:
        Index in `run` -> position of its partner: the longest document that has room and does not
        make the micro-batch cost more than the longest of the run. Those that cost least choose
        first.
    """
    own, held = costs[run], lengths[run]  # [micro-batches]
    highest = int(own.max())
    room = np.minimum(cap - held, left)
    short_of_tokens = float((highest - own).sum()) > density * min(short_tokens, float(left))
    needing = np.flatnonzero(short_of_tokens | (own + density * room < highest))
    if not len(needing):
        return {}
    by_length = lengths[waiting]
    # Cost rises with length, so `waiting[:reach]` are all documents that a micro-batch can take.
    reach = np.minimum(
        np.searchsorted(costs[waiting], highest - own[needing], side="right"),
        np.searchsorted(by_length, room[needing], side="right"),
    ).tolist()
    candidates, tokens = waiting.tolist(), by_length.tolist()
    used = set(run.tolist())
    partners: dict[int, int] = {}
    for which in np.argsort(own[needing], kind="stable").tolist():
        at = reach[which] - 1
        while at >= 0 and (candidates[at] in used or tokens[at] > left):
            at -= 1
        if at >= 0:
            used.add(candidates[at])
            partners[int(needing[which])] = candidates[at]
            left -= tokens[at]
    return partners
