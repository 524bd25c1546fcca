"""What attention within a fragment is: query-key pairs, and the tiles that cover them.

A fragment is the tokens [start, end) of a document. Attention is causal within the document, so
query t of it meets keys 0 to t, also those that lie in other fragments. Counts are exact integers.
"""

from __future__ import annotations

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.argument_checks import check_at_least

__all__ = ["TILE", "causal_pairs", "causal_tiles", "check_tile"]


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

    Rows are counted from `start`, since a kernel lays the queries that it is given from the first
    on; columns from the start of the document. A tile with one pair in it is computed whole.
    """
    rows = -(-(end - start) // tile)
    # All tiles of rows but the last end a whole number of tiles after `start`.
    whole = (rows - 1) * -(-start // tile) + rows * (rows - 1) // 2
    return np.where(rows > 0, whole + -(-end // tile), 0)


def check_tile(tile: int) -> None:
    """Raises `ConfigurationError` where `tile` is not a whole number of tokens from 1."""
    if type(tile) is not int:
        raise ConfigurationError(f"tile={tile!r} must be a whole number of tokens")
    check_at_least(1, tile=tile)
