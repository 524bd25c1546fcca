"""Where the keys that one rank needs lie: index arrays from a `Sharding`, in numpy alone.

All ranks' keys arrive in one buffer, rank after rank, in slots of equal size: as many rows as the
rank with most tokens has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.sharding import Sharding

__all__ = ["KeyLayout", "buffer_rows", "each_document_once"]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyLayout:
    """The keys of fragment f are ``first[f]`` to ``first[f] + keys[f]`` of those taken; its queries
    are ``queries[f]`` to ``queries[f + 1]`` of the rank's, and stand for the last of its keys."""

    places: Int64Array
    """[keys taken] of each in the sequence."""
    first: Int64Array
    """[fragments] key, of those taken, with which the fragment's document begins."""
    keys: Int64Array
    """[fragments]"""
    queries: Int64Array
    """[fragments + 1] from 0 to the rank's tokens."""


def each_document_once(sharding: Sharding, rank: int) -> KeyLayout:
    """Fragments of a document share its keys: none is taken twice, and none that no fragment of
    the rank looks at."""
    own = slice(int(sharding.offsets[rank]), int(sharding.offsets[rank + 1]))
    document, start, end = sharding.document[own], sharding.start[own], sharding.end[own]
    wanted = np.zeros(len(sharding.lengths), np.int64)
    np.maximum.at(wanted, document, end)
    begins = _sums(wanted)
    shift = sharding.begins[:-1] - begins[:-1]
    return KeyLayout(
        places=np.arange(begins[-1]) + shift.repeat(wanted),
        first=begins[document],
        keys=end,
        queries=_sums(end - start),
    )


def buffer_rows(sharding: Sharding, places: Int64Array) -> Int64Array:
    """Rows of the buffer in which the tokens at `places` in the sequence lie."""
    tokens = sharding.tokens
    # What fills up the slots before each rank's own.
    filling = np.arange(sharding.ranks) * tokens.max() - _sums(tokens)[:-1]
    shard_by_shard = sharding.restore[places]
    rows: Int64Array = shard_by_shard + filling.repeat(tokens)[shard_by_shard]
    return rows


def _sums(values: Int64Array) -> Int64Array:
    sums = np.zeros(len(values) + 1, np.int64)
    values.cumsum(out=sums[1:])
    return sums
