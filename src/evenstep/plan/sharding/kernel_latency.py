"""How long attention over fragments takes: the measure by which shardings are compared.

A fragment is the tokens [start, end) of a document. Attention is causal within the document, so
query t meets keys 0 to t, including those in other fragments. Query-key pairs, and the tiles that
cover them, are counted in exact integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least

TILE = 128
"""Rows and columns that an attention kernel computes together, in FlashAttention's kernels and by
default in FlexAttention's (WLB-LLM, section 5.2)."""


def causal_pairs(start: Int64Array, end: Int64Array) -> Int64Array:
    """[fragments] int64 query-key pairs of the tokens [start, end) of documents."""
    queries = end - start
    pairs: Int64Array = queries * start + queries * (queries + 1) // 2
    return pairs


def causal_tiles(start: Int64Array, end: Int64Array, tile: int = TILE) -> Int64Array:
    """[fragments] int64 tiles of `tile` x `tile` that a kernel computes for tokens [start, end).

    Rows are counted from `start`, where a kernel's queries begin; columns from the start of the
    document. A tile with a single pair in it is computed as a whole.

    For tokens [100, 400) and tiles of 128 there are three rows of tiles, which end at tokens 228,
    356 and 400; their columns begin at 0 and take 2, 3 and 4 tiles: 9 in all.
    """
    rows = -(-(end - start) // tile)
    # All rows of tiles except the last end a whole number of tiles after `start`.
    whole = (rows - 1) * -(-start // tile) + rows * (rows - 1) // 2
    return np.where(rows > 0, whole + -(-end // tile), 0)


def check_tile(tile: int) -> None:
    """Raises `ConfigurationError` unless `tile` is a whole number of tokens, at least 1."""
    if type(tile) is not int:
        raise ConfigurationError(f"tile={tile!r} must be a whole number of tokens, at least 1")
    check_at_least(1, tile=tile)


class KernelLatency(Protocol):
    """A prediction of how long a kernel takes for fragments, in any unit."""

    def __call__(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """
        Args:
            queries: [fragments] int64, all at least 1.
            keys: [fragments] int64. A fragment's queries are the last of its keys, and each of them
                meets the keys up to itself.

        Returns:
            [fragments] what each adds to the latency of its rank.
        """


@dataclass(frozen=True, kw_only=True)
class TileLatency:
    """Counts the tiles that a kernel computes, whatever the hardware."""

    tile: int = TILE

    def __post_init__(self) -> None:
        check_tile(self.tile)

    def __call__(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        return causal_tiles(keys - queries, keys, self.tile).astype(np.float64)


TILES = TileLatency()
"""The default prediction."""
