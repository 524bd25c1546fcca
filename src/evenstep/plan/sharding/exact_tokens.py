"""Ranks whose numbers of tokens nearly agree are made to agree, by a few small cuts.

The rank with most to spare gives to the one that lacks most, as much as settles one of them; so C
ranks take about C - 1 gifts, each of them tokens from either end of one fragment. A cut that is not
between tiles leaves a kernel with a broken row of tiles, or with rows that begin inside of a tile;
in a short document, or near the start of a long one, that is a few tiles. So gifts from the
earliest fragments are tried, and the one is made that leaves the slower of the two ranks fastest.

In plain Python, since these are a few fragments of a few ranks, one after the other.
"""

from __future__ import annotations

import numpy as np

from evenstep.plan.sharding.attention_tiles import causal_tiles
from evenstep.plan.sharding.fragments import Fragments

__all__ = ["exact_tokens"]

Fragment = tuple[int, int, int]
"""Document, start, end."""

_TRIED = 2
"""Fragments tried: the ones that end first in their documents, whose rows have the fewest tiles."""


def exact_tokens(fragments: Fragments, ranks: int, tile: int) -> Fragments:
    """The same tokens, such that no two ranks' numbers of tokens differ by more than one."""
    held: list[list[Fragment]] = [[] for _ in range(ranks)]
    tokens, tiles = [0] * ranks, [0] * ranks
    own_tiles = causal_tiles(fragments.start, fragments.end, tile)
    columns = (fragments.owner, fragments.document, fragments.start, fragments.end, own_tiles)
    for rank, document, start, end, count in zip(*(column.tolist() for column in columns)):
        held[rank].append((document, start, end))
        tokens[rank] += end - start
        tiles[rank] += count
    each, odd = divmod(sum(tokens), ranks)
    spare = [own - each for own in tokens]
    # What does not divide stays where there is most.
    for rank in sorted(range(ranks), key=lambda rank: -tokens[rank])[:odd]:
        spare[rank] -= 1
    while any(spare):
        giver, taker = spare.index(max(spare)), spare.index(min(spare))
        amount = min(spare[giver], -spare[taker])
        own, kept, gift = _gift(held[giver], amount, tile, tiles[giver], tiles[taker])
        held[giver].remove(own)
        if _size(kept):
            held[giver].append(kept)
        held[taker].append(gift)
        tiles[giver] += _tiles(kept, tile) - _tiles(own, tile)
        tiles[taker] += _tiles(gift, tile)
        spare[giver] -= _size(gift)
        spare[taker] += _size(gift)
    made = np.array([fragment for own in held for fragment in own], np.int64)
    owner = np.arange(ranks).repeat([len(own) for own in held])
    return Fragments(document=made[:, 0], start=made[:, 1], end=made[:, 2], owner=owner)


def _gift(
    own: list[Fragment], amount: int, tile: int, tiles: int, tiles_of_taker: int
) -> tuple[Fragment, Fragment, Fragment]:
    # The fragment to give from, what is kept of it, and what is given.
    fits = [fragment for fragment in own if fragment[2] - fragment[1] >= amount]
    if not fits:
        largest = max(own, key=_size)
        document, _, end = largest
        return largest, (document, end, end), largest
    fits.sort(key=lambda fragment: fragment[2])
    tried = []
    for fragment in fits[:_TRIED]:
        document, start, end = fragment
        others = tiles - _tiles(fragment, tile)
        for kept, gift in (
            ((document, start + amount, end), (document, start, start + amount)),
            ((document, start, end - amount), (document, end - amount, end)),
        ):
            after, given = others + _tiles(kept, tile), _tiles(gift, tile)
            slower = max(after, tiles_of_taker + given)
            tried.append((slower, after + given, fragment, kept, gift))
    return min(tried)[2:]


def _size(fragment: Fragment) -> int:
    return fragment[2] - fragment[1]


def _tiles(fragment: Fragment, tile: int) -> int:
    # `causal_tiles` of one fragment, where arrays of one would be slow.
    _, start, end = fragment
    rows = -(-(end - start) // tile)
    if not rows:
        return 0
    return (rows - 1) * -(-start // tile) + rows * (rows - 1) // 2 - (-end // tile)
