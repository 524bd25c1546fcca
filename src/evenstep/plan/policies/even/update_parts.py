"""The parts of a round whose groups count together, where ranks wait at the end of an update alone.

A part is an update, or what a round has of one: the round before may have begun it, and the next
may end it. A *dear* sample takes longer than a full group, and meets smaller groups of its own rank
in its part. Only if it takes nearly as long as all of them are its part's groups larger, on all
ranks.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.policy import Window

LEAST = 8
"""Share of a full group that is left to each of the others of an update with a dear sample."""


def divided(steps: int, window: Window, draw: np.random.Generator) -> tuple[Int64Array, Int64Array]:
    """[parts] steps of each, the largest first; and [steps] which is emitted at each place.

    Args:
        draw: in the same state on all ranks.
    """
    first = min(-window.step % window.accumulate, steps)
    whole, last = divmod(steps - first, window.accumulate)
    emitted = np.array([first, *[window.accumulate] * whole, last], np.int64)
    emitted = emitted[emitted > 0]
    places = np.lexsort((draw.random(len(emitted)), -emitted))
    sizes = emitted[places]
    steps_of = np.split(np.arange(steps), np.cumsum(sizes)[:-1])
    return sizes, np.concatenate([steps_of[part] for part in np.argsort(places).tolist()])


def budgets(dear: Float64Array, sizes: Int64Array, full: float, total: float = 0.0) -> Float64Array:
    """[parts] what the groups of each should cost together.

    Each rank's dear samples are spread over its parts. Of what they cost there, in order of cost
    over all ranks, one of as many as there are ranks asks for a part: the other ranks meet it.

    Args:
        dear: [ranks, samples] costs of dear samples, the dearest first; then 0.
        sizes: [parts] groups of each, the largest first.
        full: cost of a usual group.
        total: what all parts have to hold, at least.
    """
    ranks, whole = len(dear), int(np.count_nonzero(sizes == sizes[0]))
    loads = np.zeros((ranks, whole))
    for column in dear.T:
        loads[np.arange(ranks), loads.argmin(axis=1)] += column
    asked = np.sort(loads, axis=None)[::-1][::ranks]
    asked = np.where(asked > 0, asked + (int(sizes[0]) - 1) * full / LEAST, 0.0)
    over = 0
    level = max(full, total / int(sizes.sum()))
    while over < whole and asked[over] > level * sizes[0]:
        over += 1
        rest = int(sizes[over:].sum())
        level = max(full, (total - float(asked[:over].sum())) / max(rest, 1))
    found: Float64Array = level * sizes.astype(np.float64)
    found[:over] = asked[:over]
    return found


def placed(
    own: Float64Array, sizes: Int64Array, wanted: Float64Array, full: float
) -> tuple[Int64Array, Float64Array]:
    """The part that each dear sample of a rank goes to, or -1 where it waits for those of other
    ranks; and [parts] what is left to the other groups of each.

    Args:
        own: costs of the samples, the dearest first.
        wanted: [parts] see `budgets`.
    """
    room, free = wanted.copy(), sizes.copy()
    parts = np.full(len(own), -1)
    for sample, cost in enumerate(own.tolist()):
        spare = np.where(free > 0, room - cost - (free - 1) * (full / LEAST), -np.inf)
        part = int(spare.argmax())
        if spare[part] >= 0:
            parts[sample] = part
            room[part] -= cost
            free[part] -= 1
    return parts, room
