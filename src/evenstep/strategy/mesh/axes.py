"""Axes of a mesh and coordinates on them; the buckets into which data is divided along them.

Axes go by the names that frameworks give them.

`Buckets` are into which data is divided at an axis, and `Delivery` says which client fetches which
of them. A client needs the data of the bucket that it is in. If the trainer broadcasts along some
axes, the first client along them fetches for its peers: its own bucket and theirs. The peers fetch
nothing, and neither do stages of a pipeline that need no data.

Invariant: every client that needs data gets it from exactly one client, which fetches the bucket
that it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.errors import ConfigurationError

AXES = ("PP", "DP", "CP", "TP")
"""Axes of a mesh, outermost first."""

WORLD = "WORLD"
"""All axes together: every client."""

DIVIDING_AXES = ("DP", "CP", "TP", WORLD)
"""Axes that data can be divided at."""

# Dimension names of torchtitan's meshes, and the axis that each is part of. Those that join
# data-parallel with context-parallel ranks, as "fsdp" does, do not determine which rank needs what.
_TORCH_NAMES = {
    "pp": "PP",
    "dp": "DP",
    "batch": "DP",
    "dp_replicate": "DP",
    "dp_shard": "DP",
    "dp_shard_mod_ep": "DP",
    "dp_shard_in_ep": "DP",
    "cp": "CP",
    "tp": "TP",
}


@dataclass(frozen=True, order=True)
class Place:
    """Coordinates of a client."""

    PP: int = 0
    DP: int = 0
    CP: int = 0
    TP: int = 0

    def __str__(self) -> str:
        return " ".join(f"{axis}={getattr(self, axis)}" for axis in AXES)


def check_axis(axis: object, known: Sequence[str]) -> None:
    """Raises `ConfigurationError` for an axis that is not in `known`."""
    if axis not in known:
        raise ConfigurationError(f"axis {axis!r} must be one of {tuple(known)}")


def axis_named(name: str) -> str:
    """The axis that a dimension of a DeviceMesh is, or is part of.

    Raises:
        ConfigurationError: the name is unknown.
    """
    axis = name if name in AXES else _TORCH_NAMES.get(name)
    if axis is None:
        raise ConfigurationError(
            f"dimension {name!r} of the DeviceMesh is not one of {(*_TORCH_NAMES, *AXES)}; give "
            "the mesh of the dimensions that determine which rank needs which data, such as pp, "
            "batch, cp and tp"
        )
    return axis


def in_order(ranks: Int64Array, axes: Sequence[str]) -> Int64Array:
    """[PP, DP, CP, TP] from an array with these axes in any order. An axis that occurs twice, as
    the two halves of DP do, becomes one, with the first occurrence outermost."""
    order = sorted(range(len(axes)), key=lambda dimension: AXES.index(axes[dimension]))
    shape = [1] * len(AXES)
    for axis, size in zip(axes, ranks.shape):
        shape[AXES.index(axis)] *= size
    return np.ascontiguousarray(ranks.transpose(order).reshape(shape))


STAGES = ("ends", "first", "all")
"""Stages of a pipeline that need data: the first for tokens and the last for labels, the first
alone, or all of them."""


@dataclass(frozen=True)
class Buckets:
    """Buckets at an axis."""

    axis: str
    bucket_count: int


@dataclass(frozen=True, eq=False)
class Delivery:
    """What each client fetches. Clients are in the order of coordinates. A tree gives the same
    object for all steps, so what is asked for again and again is kept."""

    ranks: Int64Array
    """[clients] global rank of each."""
    bucket: Int64Array
    """[clients] bucket that holds its data."""
    fetched_by: Int64Array
    """[clients] global rank of the client that fetches for it: itself, the peer that broadcasts to
    it, or -1 if it needs no data."""

    @property
    def fetching(self) -> Int64Array:
        """Global ranks of the clients that fetch."""
        fetching: Int64Array = self.ranks[self.fetched_by == self.ranks]
        return fetching

    @cached_property
    def is_fetched(self) -> BoolArray:
        """[buckets] whether any client fetches each."""
        fetched = np.zeros(int(self.bucket.max()) + 1, np.bool_)
        fetched[self.bucket[self.fetched_by >= 0]] = True
        return fetched

    def bucket_of(self, rank: int) -> int:
        """The bucket that holds a client's data."""
        return int(self.bucket[self._client_of[rank]])

    def fetcher_of(self, rank: int) -> int:
        """Global rank of the client that fetches for a client, as in `fetched_by`."""
        return int(self.fetched_by[self._client_of[rank]])

    def buckets_of(self, rank: int) -> tuple[int, ...]:
        """Buckets that a client fetches, ascending: its own and those of the peers that it
        broadcasts to; none if it fetches nothing."""
        if rank not in self._buckets_of:
            fetched = np.unique(self.bucket[self.fetched_by == rank])
            self._buckets_of[rank] = tuple(fetched.tolist())
        return self._buckets_of[rank]

    def clients_of(self, bucket: int) -> Int64Array:
        """Global ranks of the clients that fetch a bucket, in the order of coordinates."""
        fetched = np.unique(self.fetched_by[(self.bucket == bucket) & (self.fetched_by >= 0)])
        return self.ranks[np.isin(self.ranks, fetched)]

    @cached_property
    def _client_of(self) -> dict[int, int]:
        """By global rank, the number of the client."""
        return {rank: client for client, rank in enumerate(self.ranks.tolist())}

    @cached_property
    def _buckets_of(self) -> dict[int, tuple[int, ...]]:
        """By global rank, see `buckets_of`."""
        return {}
