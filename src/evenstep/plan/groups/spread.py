"""Steps that mix lengths: how a round's groups of like cost are dealt out over its steps.

Ranks that form groups of samples of like length, and make groups of like length meet, train on one
length in every step, and learn less from it than from random batches. But only costs have to meet.
Where several steps of a round cost about the same on all ranks, their groups can change places, and
each rank deals its own so that long, middle and short ones come together, without a message.

Four steps of one class on two ranks, whose groups are numbered from the longest: rank r's i-th goes
to the place ``(i + 4 r / 2) mod 4``::

    place     0   1   2   3
    rank 0    0   1   2   3
    rank 1    2   3   0   1

so the longest of one meets the middle of the other in each step, and the places are emitted in an
order drawn alike on all ranks. With W ranks, W groups evenly spaced in length meet.

Where gradients of k steps are added up, the k steps of an update are mixed. With k = 2 above, the
offset is ``4 r / (2 * 2)``, and the places 0 and 2 are one update, as are 1 and 3::

    place     0   1   2   3
    rank 0    0   1   2   3
    rank 1    3   0   1   2

The first update holds groups 0 and 2 of rank 0, and 3 and 1 of rank 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.groups.groups import Groups


def spread(
    lengths: Float64Array,
    classes: Sequence[Int64Array],
    *,
    rank: int,
    ranks: int,
    accumulate: int,
    step: int,
    draw: np.random.Generator,
) -> Int64Array:
    """The order in which this rank emits its groups.

    Args:
        lengths: [steps] mean length of the samples of each group.
        classes: the steps that cost about the same, for each class; the same on all ranks. Each
            step is in one class.
        rank: number of this rank among those that have groups.
        ranks: how many have.
        accumulate: steps whose gradients are added up.
        step: of the epoch at which the round begins, which may be in the middle of an update.
        draw: in the same state on all ranks.

    Returns:
        [steps] the group in each place.
    """
    updates: list[Int64Array] = []
    loose: list[Int64Array] = []
    for steps in classes:
        count = len(steps)
        offset = rank * count // (ranks * accumulate)
        places = np.roll(steps[np.argsort(-lengths[steps], kind="stable")], offset)
        full = count // accumulate
        updates += list(places[: full * accumulate].reshape(accumulate, full).T)
        loose.append(places[full * accumulate :])
    rest = np.concatenate([np.empty(0, np.int64), *loose])
    rest = rest[draw.permutation(len(rest))]
    full = len(rest) // accumulate * accumulate
    updates += list(rest[:full].reshape(-1, accumulate))
    order = draw.permutation(len(updates))
    emitted = np.concatenate([np.empty(0, np.int64), *(updates[u] for u in order), rest[full:]])
    # The first places may belong to an update that the round before began.
    return np.roll(emitted, -step % accumulate)


def mean_lengths(groups: Groups, lengths: Int64Array) -> Float64Array:
    """[groups] mean length of the samples of each; at least one group."""
    tokens = np.add.reduceat(lengths[groups.members], groups.offsets[:-1])
    return np.asarray(tokens / groups.sizes, np.float64)


def like_costs(costs: Float64Array, tolerance: float) -> list[Int64Array]:
    """Classes of steps whose costs differ by no more than a share of the largest of the class.

    With a tolerance of 0.05, the costs 100, 98, 96, 90, 80 and 79 are three classes: 100 to 96, 90,
    and 80 and 79.

    Args:
        costs: [steps] what each step costs on all ranks.
        tolerance: from 0 to 1.
    """
    order = np.argsort(-costs, kind="stable")
    descending = costs[order]
    classes: list[Int64Array] = []
    begin = 0
    while begin < len(order):
        end = int(np.count_nonzero(descending >= descending[begin] * (1 - tolerance)))
        classes.append(order[begin : max(end, begin + 1)])
        begin = max(end, begin + 1)
    return classes
