"""How long an attention kernel takes for the fragments of a rank (WLB-LLM, sections 5.2 and 5.3).

The queries of a fragment are the last of its keys. A kernel computes whole tiles, so operations are
counted on tiles. Its throughput depends on how many queries share the keys that are loaded, and on
how many keys each query meets. The model is a table of throughput over (queries, keys), one for
forward and one for backward:

    seconds of a rank = launch + sum over its fragments of operations on tiles / throughput

Between its points the table is interpolated, the logarithm of throughput over the logarithms of
both lengths; outside of them it is constant. Lengths are first rounded up to whole tiles, as in the
kernel: 16 and 128 queries take equally long.

The model is a `KernelLatency` and needs neither torch nor the hardware it was measured on.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.errors import ConfigurationError, parsing
from evenstep.files import MeasuredFile
from evenstep.plan.sharding.sharding import TILE, Sharding, causal_tiles, check_tile
from evenstep.plan.value_checks import AT_LEAST_1, check_at_least, check_one_of, check_schema

Table = tuple[tuple[float, ...], ...]

FORWARD = 4
"""Forward operations of a query-key pair per element of a head: two products, a multiplication and
an addition each."""
BACKWARD = 10
"""Backward operations: five products, for the scores once more and the gradients of probabilities,
queries, keys and values."""

_FILE = MeasuredFile(
    format="evenstep attention latency",
    name="attention latency",
    version=1,
    again="recreate it with evenstep profile --attention",
    by_hand="To change the table by hand, build an AttentionLatency",
)
_LAUNCHES = ("rank", "fragment")

_SCHEMA = {
    **dict.fromkeys(("heads", "head_size", "tile"), AT_LEAST_1),
    "kv_heads": (AT_LEAST_1, None),
    "queries": [AT_LEAST_1],
    "keys": [AT_LEAST_1],
    "forward_tflops": [[float]],
    "backward_tflops": [[float]],
    "forward_launch": float,
    "backward_launch": float,
    **dict.fromkeys(("launches", "device", "kernel", "dtype"), str),
    "versions": {str: str},
}

logger = logging.getLogger("evenstep")


@dataclass(frozen=True, kw_only=True)
class AttentionLatency:
    """Latency of fragments, in seconds, on one device with one kernel."""

    heads: int
    """Query heads that a GPU computes: those of the model over the ranks of tensor parallelism."""
    head_size: int
    queries: tuple[int, ...]
    """Points of the table, ascending, at least two."""
    keys: tuple[int, ...]
    forward_tflops: Table
    """[queries, keys] throughput in 1e12 operations a second, on tiles."""
    backward_tflops: Table
    tile: int = TILE
    """Rows and columns that the kernel computes together."""
    forward_launch: float = 0.0
    """Seconds of a kernel call in addition to its operations."""
    backward_launch: float = 0.0
    launches: str = "rank"
    """What one call computes: "rank" if the kernel takes sequences of various lengths, so that all
    fragments of a rank are one call; "fragment" if each is a call."""
    kv_heads: int | None = None
    """Heads of keys and values in the measurement; None is `heads`."""
    device: str = ""
    kernel: str = ""
    dtype: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    """(package, version) of each package involved."""

    def __post_init__(self) -> None:
        check_at_least(1, heads=self.heads, head_size=self.head_size, kv_heads=self.kv_heads)
        check_tile(self.tile)
        for name in ("queries", "keys"):
            points = getattr(self, name)
            if len(points) < 2 or points[0] < 1 or any(a >= b for a, b in pairwise(points)):
                raise ConfigurationError(
                    f"{name}={points} must be at least two lengths, ascending from 1 or more"
                )
        shape = (len(self.queries), len(self.keys))
        for name in ("forward_tflops", "backward_tflops"):
            table = getattr(self, name)
            rows = {len(row) for row in table}
            if len(table) != shape[0] or rows != {shape[1]}:
                raise ConfigurationError(
                    f"{name} has {len(table)} rows of {sorted(rows)} figures and must have "
                    f"{shape[0]} of {shape[1]}: one for each of queries and keys"
                )
            values = np.array(table, np.float64)
            if not ((values < 1e100).all() and (values > 1e-100).all()):
                raise ConfigurationError(f"{name}={table} must be finite and positive")
        for name in ("forward_launch", "backward_launch"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigurationError(
                    f"{name}={getattr(self, name)} must be finite seconds, not negative"
                )
        check_one_of(_LAUNCHES, launches=self.launches)

    def __call__(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """[fragments] float64 seconds of each, forward and backward together.

        They include launches with ``launches="fragment"``. With "rank" they do not: launches are
        then the same on all ranks, and `of_ranks` includes them.

        Args:
            queries: [fragments] int64, at least 1.
            keys: [fragments] int64, at least `queries`.

        Raises:
            ConfigurationError: a fragment without queries, or with more queries than keys.
        """
        forward, backward = self.passes(queries, keys)
        both: Float64Array = forward + backward
        return both

    def passes(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """[2, fragments] seconds of the forward and the backward pass, as `__call__`."""
        if len(queries) and (queries.min() < 1 or (queries > keys).any()):
            raise ConfigurationError(
                "a fragment has no queries, or more queries than keys; its queries must be the "
                "last of its keys"
            )
        tiles = causal_tiles(keys - queries, keys, self.tile)
        seconds = tiles * self._operations / self.throughput(queries, keys)
        return seconds + self._launches if self.launches == "fragment" else seconds

    def of_ranks(self, sharding: Sharding) -> Float64Array:
        """[2, ranks] seconds of the forward and the backward pass of each rank, launches
        included."""
        queries, keys = sharding.end - sharding.start, sharding.end
        rank = np.arange(sharding.ranks).repeat(sharding.fragments)
        each = self.passes(queries, keys)
        both: Float64Array = np.empty((2, sharding.ranks), np.float64)
        for row, seconds in zip(both, each):
            row[:] = np.bincount(rank, seconds, sharding.ranks)
        return both + self._launches if self.launches == "rank" else both

    def as_dict(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return {
            **asdict(self),
            "forward_tflops": [list(row) for row in self.forward_tflops],
            "backward_tflops": [list(row) for row in self.backward_tflops],
            "queries": list(self.queries),
            "keys": list(self.keys),
            "versions": dict(self.versions),
        }

    def save(
        self, path: str | os.PathLike[str], *, measured: Mapping[str, Any] | None = None
    ) -> None:
        """Writes a file that `load_latency` reads, whole or not at all.

        Args:
            measured: what it was made from, as JSON values; kept for the reader of the file.
        """
        _FILE.write(path, {"latency": self.as_dict(), "measured": dict(measured or {})})

    def throughput(self, queries: Int64Array, keys: Int64Array) -> Float64Array:
        """[2, fragments] operations a second, forward and backward."""
        row, down = _between(self._points[0], self._whole(queries))
        column, right = _between(self._points[1], self._whole(keys))
        width = len(self.keys)
        corner = row * width + column  # [fragments] the point above and left of each
        logs, left = self._logs, 1 - right
        # upper, lower: [2, fragments] interpolated along keys, at the rows above and below
        upper = logs[:, corner] * left + logs[:, corner + 1] * right
        lower = logs[:, corner + width] * left + logs[:, corner + width + 1] * right
        throughput: Float64Array = np.exp(upper * (1 - down) + lower * down)
        return throughput

    @cached_property
    def _logs(self) -> Float64Array:
        """[2, points] logarithms of operations a second, row after row."""
        tables = np.array([self.forward_tflops, self.backward_tflops])
        return np.log(tables * 1e12).reshape(2, -1)

    @cached_property
    def _points(self) -> tuple[Float64Array, Float64Array]:
        return np.log(np.array(self.queries)), np.log(np.array(self.keys))

    @cached_property
    def _operations(self) -> Float64Array:
        """[2, 1] operations of a tile, forward and backward."""
        per_pair = np.array([[FORWARD], [BACKWARD]], np.float64)
        return per_pair * self.heads * self.head_size * self.tile**2

    @cached_property
    def _launches(self) -> Float64Array:
        """[2, 1] seconds of a launch, forward and backward."""
        return np.array([[self.forward_launch], [self.backward_launch]])

    def _whole(self, lengths: Int64Array) -> Float64Array:
        """Logarithms of `lengths` rounded up to tiles."""
        logs: Float64Array = np.log(-(-lengths // self.tile) * self.tile)
        return logs


def _between(points: Float64Array, values: Float64Array) -> tuple[Int64Array, Float64Array]:
    """[n] index of the point before each value, and [n] how far it is to the next, from 0 to 1.

    Points 1, 2, 4 and values 0.5, 3 and 9 give the indices 0, 1, 1 and the distances 0, 0.5, 1.
    """
    index = points[1:-1].searchsorted(values, side="right")
    way = (values - points[index]) / np.diff(points)[index]
    return index, np.minimum(np.maximum(way, 0.0), 1.0)


def load_latency(
    path: str | os.PathLike[str], *, device: str | None = None, kernel: str | None = None
) -> AttentionLatency:
    """Reads what `evenstep profile --attention` has measured, and logs its device and kernel.

    Args:
        device: name of the device that will compute, as the file has it: see
            `evenstep.tools.profile.attention.this_device`. None accepts any.
        kernel: name of the kernel that will compute. None accepts any.

    Raises:
        ConfigurationError: there is no such file, another program or version wrote it, it has
            changed since, or it is for another device or kernel.
    """
    content = _FILE.read(path)
    with parsing(path, remedy=_FILE.again):
        check_schema(content["latency"], _SCHEMA)
        names = {field.name for field in fields(AttentionLatency)}
        values = {name: value for name, value in content["latency"].items() if name in names}
        for name in ("forward_tflops", "backward_tflops"):
            values[name] = tuple(tuple(map(float, row)) for row in values[name])
        for name in ("queries", "keys"):
            values[name] = tuple(values[name])
        values["versions"] = tuple(values["versions"].items())
        latency = AttentionLatency(**values)
    for what, wanted, found in (
        ("device", device, latency.device),
        ("kernel", kernel, latency.kernel),
    ):
        if wanted is not None and wanted != found:
            raise ConfigurationError(
                f"{path} was measured with {what} {found!r}, so it does not hold for {wanted!r}; "
                f"{_FILE.again} there"
            )
    logger.info(
        "%s: measured on %s with %s, %s", path, latency.device, latency.kernel, latency.dtype
    )
    return latency
