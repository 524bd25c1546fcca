"""Hybrid sharding: nearly all documents stay whole, and few cuts make tokens and cost equal.

The more fragments there are, the more attention wastes, since a kernel computes whole tiles.
Per-document sharding makes 2C fragments of every document and balances pairs, so the slowest rank
computes many pairs that are masked. Equal shares of both tokens and tiles take some 3C cuts for the
whole sequence, most of them between tiles. WLB-LLM has no such method.

*Equal shares.* Lay the documents end to end. Walking along, let f be the cost passed so far less
what it would be at the mean rate; f is 0 at both ends. Such a curve has, for every whole number n,
a level chord that spans exactly an n-th of the way (the universal chord theorem): a stretch with an
n-th of the tokens and an n-th of the cost. It becomes the share of one rank, its two sides are
joined, and the same holds of what is left for the n - 1 others. So C ranks need no more than
2(C - 1) cuts, and all other documents stay whole. The shares of a single document are those of
per-document sharding: one stretch in the middle, around it pairs of an early and a late one. Cuts
are made at whole tiles of rows only, where they cost a kernel nothing, so tokens are equal to about
a tile, and cost to about a row of tiles.

*Exact tokens.* The rank with most tokens too many then moves some to the rank with most too few, as
many as settle one of the two; so C ranks take about C - 1 moves, each of tokens from either end of
one fragment. A cut that is not between tiles costs a kernel a partial row of tiles, or rows that
begin inside a tile. In a short document, or near the start of a long one, that is a few tiles. So
moves from the earliest fragments are considered, and the one that leaves the slower of the two
ranks fastest is made.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array, prefix_sums
from evenstep.plan.sharding.sharding import (
    TILE,
    TILES,
    Fragments,
    KernelLatency,
    Sharding,
    TileLatency,
    causal_tiles,
    check_documents,
)


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


Fragment = tuple[int, int, int]
"""Document, start, end."""

_CONSIDERED = 2
"""Fragments considered: those that end first in their documents, whose rows have fewest tiles."""


def exact_tokens(fragments: Fragments, ranks: int, tile: int) -> Fragments:
    """Moves tokens until no two ranks' numbers of tokens differ by more than one.

    Ranks with 10, 13 and 7 tokens move 3 from the second to the third, in one cut.
    """
    held: list[list[Fragment]] = [[] for _ in range(ranks)]
    tokens, tiles = [0] * ranks, [0] * ranks
    own_tiles = causal_tiles(fragments.start, fragments.end, tile)
    given = (fragments.owner, fragments.document, fragments.start, fragments.end, own_tiles)
    for rank, document, start, end, count in zip(*(column.tolist() for column in given)):
        held[rank].append((document, start, end))
        tokens[rank] += end - start
        tiles[rank] += count
    each, odd = divmod(sum(tokens), ranks)
    excess = [own - each for own in tokens]
    # Tokens that do not divide evenly stay on the ranks with most.
    for rank in sorted(range(ranks), key=lambda rank: -tokens[rank])[:odd]:
        excess[rank] -= 1
    while any(excess):
        source, target = excess.index(max(excess)), excess.index(min(excess))
        amount = min(excess[source], -excess[target])
        own, kept, moved = _best_move(held[source], amount, tile, tiles[source], tiles[target])
        held[source].remove(own)
        if _size(kept):
            held[source].append(kept)
        held[target].append(moved)
        tiles[source] += _tiles(kept, tile) - _tiles(own, tile)
        tiles[target] += _tiles(moved, tile)
        excess[source] -= _size(moved)
        excess[target] += _size(moved)
    columns = np.array([fragment for own in held for fragment in own], np.int64).T
    owner = np.arange(ranks).repeat([len(own) for own in held])
    return Fragments(document=columns[0], start=columns[1], end=columns[2], owner=owner)


def _best_move(
    own: list[Fragment], amount: int, tile: int, source_tiles: int, target_tiles: int
) -> tuple[Fragment, Fragment, Fragment]:
    """The fragment to move tokens from, what is kept of it, and what is moved."""
    long_enough = [fragment for fragment in own if _size(fragment) >= amount]
    if not long_enough:
        largest = max(own, key=_size)
        document, _, end = largest
        return largest, (document, end, end), largest
    long_enough.sort(key=lambda fragment: fragment[2])
    moves = []
    for fragment in long_enough[:_CONSIDERED]:
        document, start, end = fragment
        others = source_tiles - _tiles(fragment, tile)
        for kept, moved in (
            ((document, start + amount, end), (document, start, start + amount)),
            ((document, start, end - amount), (document, end - amount, end)),
        ):
            left, added = others + _tiles(kept, tile), _tiles(moved, tile)
            slower = max(left, target_tiles + added)
            moves.append((slower, left + added, fragment, kept, moved))
    return min(moves)[2:]


def _size(fragment: Fragment) -> int:
    return fragment[2] - fragment[1]


def _tiles(fragment: Fragment, tile: int) -> int:
    """`causal_tiles` of one fragment, without the time that arrays of one take."""
    _, start, end = fragment
    rows = -(-(end - start) // tile)
    if not rows:
        return 0
    return (rows - 1) * -(-start // tile) + rows * (rows - 1) // 2 - (-end // tile)


def shard_equally(
    lengths: npt.ArrayLike, ranks: int, *, latency: KernelLatency = TILES
) -> Sharding:
    """Shards a sequence into equal shares of tokens and cost, in few fragments.

    Cost is counted in tiles, and a tile of a document costs what `latency` predicts for the whole
    document, divided by its tiles.
    """
    documents = check_documents(lengths, ranks)
    tile = latency.tile if isinstance(latency, TileLatency) else TILE
    per_tile = latency(documents, documents) / causal_tiles(0 * documents, documents, tile)
    shares = equal_shares(documents, ranks, per_tile, tile)
    return exact_tokens(shares, ranks, tile).sharding(documents, ranks, "hybrid")
