"""Makes ranks that hold nearly equal numbers of tokens hold equal ones, by a few small cuts.

The rank with most tokens too many moves some to the rank with most too few, as many as settle one
of the two; so C ranks take about C - 1 moves, each of tokens from either end of one fragment. A cut
that is not between tiles costs a kernel a partial row of tiles, or rows that begin inside a tile;
in a short document, or near the start of a long one, that is a few tiles. So moves from the
earliest fragments are considered, and the one that leaves the slower of the two ranks fastest is
made.

In plain Python, since these are a few fragments of a few ranks, one after the other.
"""

from __future__ import annotations

import numpy as np

from evenstep.plan.sharding.attention_tiles import causal_tiles
from evenstep.plan.sharding.sharding import Fragments

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
