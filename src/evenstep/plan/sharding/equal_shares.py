"""Equal shares of tokens and of cost at once, with few cuts.

Lay the documents end to end. Walking along, let f be the cost passed so far less what it would be
at the mean rate; f is 0 at both ends. Such a curve has, for every whole number n, a level chord
that spans exactly an n-th of the way (the universal chord theorem): a stretch with an n-th of the
tokens and an n-th of the cost. It becomes the share of one rank, its two sides are joined, and the
same holds of what is left for the n - 1 others. So C ranks need no more than 2(C - 1) cuts, and all
other documents stay whole. The shares of a single document are those of per-document sharding: one
stretch in the middle, around it pairs of an early and a late one.

Cuts are made at whole tiles of rows only, where they cost a kernel nothing; so tokens are equal to
about a tile, and cost to about a row of tiles. `exact_tokens` does the rest.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.sharding.sharding import Fragments, prefix_sums


def equal_shares(lengths: Int64Array, ranks: int, per_tile: Float64Array, tile: int) -> Fragments:
    """Divides documents among ranks, in fragments that begin at whole tiles.

    Args:
        lengths: [documents] int64, all at least 1.
        ranks: at least 1; some get nothing if there are fewer rows of tiles than ranks.
        per_tile: [documents] cost of a tile of each.
        tile: rows and columns of a tile.
    """
    rows = -(-lengths // tile)  # [documents]
    after = rows.cumsum()
    document = np.arange(len(lengths)).repeat(rows)  # [rows], as are the next three
    row = np.arange(int(after[-1])) - (after - rows)[document]  # counted from 0 in each document
    tokens = np.full(len(row), tile)
    tokens[after - 1] = lengths - (rows - 1) * tile
    owner = np.full(len(row), ranks - 1)
    left = np.arange(len(row))  # [rows left] rows that no rank has yet
    # [rows left + 1] tokens and cost of those before each, and of all.
    tokens_before = prefix_sums(tokens)
    cost_before = prefix_sums((row + 1) * per_tile[document])
    for rank in range(ranks - 1):
        begin, end = _stretch(tokens_before, cost_before, ranks - rank, tile)
        owner[left[begin:end]] = rank
        left = np.concatenate((left[:begin], left[end:]))
        tokens_before, cost_before = (
            np.concatenate((each[:begin], each[end:] - (each[end] - each[begin])))
            for each in (tokens_before, cost_before)
        )
    first = np.append(True, (owner[1:] != owner[:-1]) | (row[1:] == 0))
    last = np.append(first[1:], True)
    return Fragments(
        document=document[first],
        start=row[first] * tile,
        end=row[last] * tile + tokens[last],
        owner=owner[first],
    )


def _stretch(
    tokens_before: Int64Array, cost_before: Float64Array, shares: int, tile: int
) -> tuple[int, int]:
    """The rows [begin, end) that are nearest to one of `shares` equal shares of tokens and cost."""
    total = int(tokens_before[-1])
    share, cost = total // shares, float(cost_before[-1]) / shares
    # A stretch may begin at every row that has a share of tokens behind it, up to half a tile, and
    # ends at the row nearest to that share. The one whose cost is nearest to a share is taken.
    count = int(tokens_before.searchsorted(total - share + tile // 2, side="right"))
    ends = tokens_before.searchsorted(tokens_before[:count] + (share - tile // 2))
    error = cost_before[ends]
    error -= cost_before[:count]
    error -= cost
    begin = int(np.abs(error).argmin())
    return begin, int(ends[begin])
