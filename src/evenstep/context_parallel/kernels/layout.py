"""Where the keys lie that one rank needs: index arrays from a `Sharding`, in NumPy alone.

The keys of all ranks arrive in one buffer, rank after rank, in slots of equal size: as many rows as
the rank with most tokens has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array, prefix_sums
from evenstep.plan.sharding.sharding import Sharding


@dataclass(frozen=True, kw_only=True, eq=False)
class KeyLayout:
    """Keys and queries of a rank's fragments.

    The keys of fragment f are ``first[f]`` to ``first[f] + keys[f]`` of those taken. Its queries
    are ``queries[f]`` to ``queries[f + 1]`` of the rank's, and belong to the last of its keys.
    """

    positions: Int64Array
    """[keys taken] position of each in the sequence."""
    first: Int64Array
    """[fragments] index, among the keys taken, of the first key of the fragment's document."""
    keys: Int64Array
    """[fragments] number of keys."""
    queries: Int64Array
    """[fragments + 1] from 0 to the number of the rank's tokens."""


def each_document_once(sharding: Sharding, rank: int) -> KeyLayout:
    """Takes each key once that any fragment of the rank meets: fragments of a document share them.

    With documents of 5 and 3 tokens and the fragments [0, 2) and [3, 5) of the first, the keys
    taken are 0 to 4, and ``first=[0, 0]``, ``keys=[2, 5]``, ``queries=[0, 2, 4]``.
    """
    own = slice(int(sharding.offsets[rank]), int(sharding.offsets[rank + 1]))
    document, start, end = sharding.document[own], sharding.start[own], sharding.end[own]
    needed = np.zeros(len(sharding.lengths), np.int64)  # [documents] keys
    np.maximum.at(needed, document, end)
    begins = prefix_sums(needed)
    shift = sharding.begins[:-1] - begins[:-1]
    return KeyLayout(
        positions=np.arange(begins[-1]) + shift.repeat(needed),
        first=begins[document],
        keys=end,
        queries=prefix_sums(end - start),
    )


def buffer_rows(sharding: Sharding, positions: Int64Array) -> Int64Array:
    """Rows of the buffer that hold the tokens at `positions` of the sequence."""
    tokens = sharding.tokens
    # [ranks] rows of padding in the slots before each rank's.
    padding = np.arange(sharding.ranks) * tokens.max() - prefix_sums(tokens)[:-1]
    unpadded = sharding.restore[positions]
    rows: Int64Array = unpadded + padding.repeat(tokens)[unpadded]
    return rows
