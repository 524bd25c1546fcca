"""How long an attention kernel takes for the fragments of a rank (WLB-LLM, sections 5.2 and 5.3).

A kernel computes whole tiles, so operations are counted on tiles. Its throughput depends on how
many queries share the keys that are loaded, and on how many keys each query meets. The model is a
table of throughput over (queries, keys), one for forward and one for backward:

    seconds of a rank = launch + sum over its fragments of operations on tiles / throughput

Between its points the table is interpolated, the logarithm of throughput over the logarithms of
both lengths, which are rounded up to whole tiles; outside of them it is constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.sharding.sharding import TILE, Sharding, causal_tiles

Table = tuple[tuple[float, ...], ...]

OPERATIONS = np.array([[4.0], [10.0]])
"""Forward and backward, of a query-key pair per element of a head."""


@dataclass(frozen=True, kw_only=True)
class AttentionLatency:
    """Latency of fragments, in seconds: a `KernelLatency`."""

    heads: int
    """Query heads that a GPU computes: those of the model over the ranks of tensor parallelism."""
    head_size: int
    queries: tuple[int, ...]
    """Points of the table, ascending, at least two."""
    keys: tuple[int, ...]
    forward_tflops: Table
    """[queries, keys] throughput in 1e12 operations a second, on tiles."""
    backward_tflops: Table
    forward_launch: float = 0.0
    """Seconds of a kernel call in addition to its operations."""
    backward_launch: float = 0.0

    def __post_init__(self) -> None:
        if not (np.array([self.forward_tflops, self.backward_tflops]) > 0).all():
            raise ConfigurationError("throughputs must be positive")

    def __call__(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """[fragments] float64 seconds of each, forward and backward together, without launches."""
        both: Float64Array = self.passes(queries, keys).sum(axis=0)
        return both

    def passes(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """[2, fragments] seconds of the forward and the backward pass."""
        tiles = causal_tiles(keys - queries, keys)
        operations = OPERATIONS * self.heads * self.head_size * TILE**2 * tiles
        seconds: Float64Array = operations / self.throughput(queries, keys)
        return seconds

    def of_ranks(self, sharding: Sharding) -> Float64Array:
        """[2, ranks] seconds of the forward and the backward pass of each rank, launches
        included."""
        rank = np.arange(sharding.ranks).repeat(sharding.fragments)
        each = self.passes(sharding.end - sharding.start, sharding.end)
        both = np.stack([np.bincount(rank, one, sharding.ranks) for one in each])
        launches = np.array([[self.forward_launch], [self.backward_launch]])
        seconds: Float64Array = both + launches
        return seconds

    def throughput(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """[2, fragments] operations a second, forward and backward."""
        row, down = _between(self.queries, queries)
        column, right = _between(self.keys, keys)
        logs = np.log(np.array([self.forward_tflops, self.backward_tflops]) * 1e12)
        upper = logs[:, row, column] * (1 - right) + logs[:, row, column + 1] * right
        lower = logs[:, row + 1, column] * (1 - right) + logs[:, row + 1, column + 1] * right
        throughput: Float64Array = np.exp(upper * (1 - down) + lower * down)
        return throughput


def _between(points: tuple[int, ...], lengths: Int64Array) -> tuple[Int64Array, Float64Array]:
    """[n] index of the point before each length in whole tiles, and [n] how far it is to the next,
    from 0 to 1."""
    logs, values = np.log(points), np.log(-(-lengths // TILE) * TILE)
    index = logs[1:-1].searchsorted(values, side="right")
    way = (values - logs[index]) / np.diff(logs)[index]
    return index, np.clip(way, 0.0, 1.0)
