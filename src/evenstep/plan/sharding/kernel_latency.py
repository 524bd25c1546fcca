"""How long attention over fragments takes: the measure by which shardings are compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.sharding.attention_tiles import TILE, causal_tiles, check_tile


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
