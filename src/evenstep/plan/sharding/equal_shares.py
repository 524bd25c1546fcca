"""Equal shares of tokens and of work at once, with few cuts.

Lay the documents end to end. Walking along, let f be the work passed so far less what it would be
at the mean rate; f is 0 at both ends. Such a curve has, for every whole number n, a level chord
that spans exactly an n-th of the way (the universal chord theorem): a stretch with an n-th of the
tokens and an n-th of the work. It becomes the share of one rank, its two sides are joined, and the
same holds of what is left for the n - 1 others. So C ranks need no more than 2(C - 1) cuts, and all
other documents stay whole. Of a single document the shares come out as per-document sharding's:
one stretch in the middle, around it pairs of an early and a late one.

Cuts are made at whole tiles of rows only, where they cost a kernel nothing; so tokens are equal to
about a tile, and work to about a row of tiles. `exact_tokens` does the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.sharding.fragments import Fragments

__all__ = ["equal_shares"]


def equal_shares(lengths: Int64Array, ranks: int, rates: Float64Array, tile: int) -> Fragments:
    """Documents dealt to ranks in fragments that begin at whole tiles.

    Args:
        lengths: [documents] int64, all from 1.
        ranks: from 1; some get nothing where there are fewer rows of tiles than ranks.
        rates: [documents] work of a tile of each.
        tile: rows and columns of a tile.
    """
    rows = -(-lengths // tile)
    after = rows.cumsum()
    document = np.arange(len(lengths)).repeat(rows)
    row = np.arange(int(after[-1])) - (after - rows)[document]
    tokens = np.full(len(row), tile)
    tokens[after - 1] = lengths - (rows - 1) * tile
    owner = np.full(len(row), ranks - 1)
    # Of what no rank has yet: numbers of the rows, and tokens and work before each and of all.
    left, passed, done = np.arange(len(row)), _sums(tokens), _sums((row + 1) * rates[document])
    for rank in range(ranks - 1):
        begin, end = _stretch(passed, done, ranks - rank, tile)
        owner[left[begin:end]] = rank
        left = np.concatenate((left[:begin], left[end:]))
        passed, done = (
            np.concatenate((each[:begin], each[end:] - (each[end] - each[begin])))
            for each in (passed, done)
        )
    first = np.append(True, (owner[1:] != owner[:-1]) | (row[1:] == 0))
    last = np.append(first[1:], True)
    return Fragments(
        document=document[first],
        start=row[first] * tile,
        end=row[last] * tile + tokens[last],
        owner=owner[first],
    )


def _stretch(passed: Int64Array, done: Float64Array, shares: int, tile: int) -> tuple[int, int]:
    # The rows [begin, end) that are nearest to one of so many equal shares of both.
    total = int(passed[-1])
    share, worth = total // shares, float(done[-1]) / shares
    # From every beginning with a share behind it, to half a tile, to the end nearest in tokens.
    count = int(passed.searchsorted(total - share + tile // 2, side="right"))
    ends = passed.searchsorted(passed[:count] + (share - tile // 2))
    wrong = done[ends]
    wrong -= done[:count]
    wrong -= worth
    begin = int(np.abs(wrong).argmin())
    return begin, int(ends[begin])


def _sums(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    sums = np.zeros(len(values) + 1, values.dtype)
    values.cumsum(out=sums[1:])
    return sums
