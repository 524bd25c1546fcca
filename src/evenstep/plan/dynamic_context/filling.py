"""Places each parcel, costliest first, in the bin that lacks most work.

A bin is a group of ranks, with a long document or still without one. If single ranks cannot hold
the parcels because each leaves a part of its memory unused, bins of two, four, ... ranks are tried.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.dynamic_context.options import DynamicContext
from evenstep.plan.partition.greedy import place


@dataclass(frozen=True, eq=False)
class RankBins:
    """Groups of ranks and what they hold."""

    size: Int64Array
    """[bins] ranks of each."""
    bin_of: Int64Array
    """[parcels] the bin of each."""


def fill_bins(
    sizes: Int64Array,
    tokens: Int64Array,
    cost: Int64Array,
    options: DynamicContext,
    time: float,
) -> RankBins | None:
    """Places all parcels; None if they do not fit.

    Args:
        sizes: [groups] ranks of the groups of the first parcels.
        tokens, cost: [parcels] in descending order of length.
        time: cost that a rank should have.
    """
    heads = len(sizes)
    free = options.ranks - int(sizes.sum())
    width = 1
    while True:
        more = np.full(free // width, width)
        if free % width:
            more = np.append(more, free % width)
        size = np.concatenate((sizes, more))
        room, lack = size * options.tokens_per_rank, (size * time).astype(np.int64)
        room[:heads] -= tokens[:heads]
        lack[:heads] -= cost[:heads] + sizes * options.rough(tokens[:heads])
        placed = None
        if len(size):
            placed = _place(room, lack, tokens[heads:], cost[heads:])
        if placed is not None:
            return RankBins(size, np.concatenate((np.arange(heads), placed)))
        if width >= free:
            return None
        width *= 2


def _place(
    room: Int64Array, lack: Int64Array, tokens: Int64Array, cost: Int64Array
) -> Int64Array | None:
    """The bin of each parcel, or None. Bins differ in room and in the work that they lack, so each
    first gets an item that uses up the difference. Item b goes to bin b, as no bin is empty twice.
    """
    bins, most, cap = len(room), int(lack.max()), int(room.max())
    costs = np.concatenate((most - lack + 1, cost))
    sizes = np.concatenate((cap - room, tokens))
    order = np.arange(len(costs))
    # Mostly there is room enough. Without a limit, placement is faster and the bins are the same.
    found = place(costs, bins, order=order)
    if found is not None and (np.bincount(found, sizes, bins) > cap).any():
        found = place(costs, bins, tokens=sizes, cap=cap, order=order)
    return None if found is None else found[bins:]
