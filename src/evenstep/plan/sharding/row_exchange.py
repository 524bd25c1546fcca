"""Ranks with equal tokens get equal attention: they exchange single rows of tiles.

Cuts between tiles leave a rank up to half a row of tiles more than its share, and cuts that make
tokens equal may leave it several. The slowest rank gives one of the fastest a long row, and
gets a shorter one of as many tokens: that which brings the two closest together. A rank has rows of
nearly any length, so a few exchanges make all ranks equal, for a few more fragments.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.sharding.attention_tiles import TILE
from evenstep.plan.sharding.sharding import Fragments, Sharding

_FINE = 0.001
"""Share of its tiles that the slowest rank may have too many."""
_ROUNDS = 2
"""Exchanges for each rank, at most."""
_PARTNERS = 8
"""Fastest ranks that the slowest one asks, one after the other."""


def exchange_rows(sharding: Sharding, tile: int = TILE) -> Sharding:
    """A sharding with the same tokens on each rank, whose slowest rank computes fewer tiles."""
    ranks, tiles = sharding.ranks, sharding.tiles(tile)
    before = int(tiles.max())
    enough = (1 + _FINE) * float(tiles.mean())
    if tiles.max() <= enough:
        return sharding
    # Whole rows, counted from where a fragment begins, as kernels count them.
    counts = (sharding.end - sharding.start) // tile  # [fragments]
    fragment = np.arange(len(counts)).repeat(counts)  # [rows], as are the next two
    start = sharding.start[fragment] + _within(counts) * tile
    cost = -(-(start + tile) // tile)
    of_fragments = np.arange(ranks).repeat(sharding.fragments)
    owner = of_fragments[fragment]
    held = np.split(np.arange(len(owner)), np.bincount(owner, minlength=ranks).cumsum()[:-1])
    for _ in range(_ROUNDS * ranks):
        slow = int(tiles.argmax())
        if tiles[slow] <= enough:
            break
        for fast in tiles.argsort(kind="stable")[:_PARTNERS].tolist():
            gap = int(tiles[slow] - tiles[fast])
            given, taken, moved = _best_pair(cost[held[slow]], cost[held[fast]], gap)
            if moved:
                break
        if not moved:
            break
        held[slow][given], held[fast][taken] = held[fast][taken], held[slow][given]
        tiles[slow] -= moved
        tiles[fast] += moved
    for rank, rows in enumerate(held):
        owner[rows] = rank
    rest = np.flatnonzero(sharding.start + counts * tile < sharding.end)
    parts = Fragments(
        document=np.concatenate((sharding.document[fragment], sharding.document[rest])),
        start=np.concatenate((start, (sharding.start + counts * tile)[rest])),
        end=np.concatenate((start + tile, sharding.end[rest])),
        owner=np.concatenate((owner, of_fragments[rest])),
    )
    made = parts.sharding(sharding.lengths, ranks, sharding.method)
    # Where fragments do not begin between tiles, rows that meet may count differently.
    return made if made.tiles(tile).max() < before else sharding


def _best_pair(own: Int64Array, others: Int64Array, gap: int) -> tuple[int, int, int]:
    """Positions of the rows to exchange, and the tiles that this moves; 0 if it would not help.

    Args:
        own, others: [rows] tiles of each row of the slower and of the faster rank.
        gap: tiles that the slower one has more.
    """
    if not len(own) or not len(others):
        return 0, 0, 0
    order = others.argsort(kind="stable")
    ascending = others[order]
    near = np.searchsorted(ascending, own - gap // 2)
    near = np.stack([np.maximum(near - 1, 0), np.minimum(near, len(others) - 1)])
    moved = own - ascending[near]  # [2, rows]
    off = np.where((moved > 0) & (moved < gap), np.abs(2 * moved - gap), gap)
    side, given = np.unravel_index(int(off.argmin()), off.shape)
    helps = int(off[side, given]) < gap
    return int(given), int(order[near[side, given]]), int(moved[side, given]) if helps else 0


def _within(counts: Int64Array) -> Int64Array:
    """0 to n - 1 for each count n, one after the other."""
    return np.arange(int(counts.sum())) - (counts.cumsum() - counts).repeat(counts)
