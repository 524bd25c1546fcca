"""`ClientPlaceTree`: which process of a job needs which data (OVERLORD, section 4.1).

A device mesh as a tree: under the root the stages of the pipeline (PP), under each of them the
data-parallel groups (DP), under those the context-parallel ones (CP), and under those the
tensor-parallel peers (TP), which are leaves. A leaf is a *client*: a process that trains, with its
coordinates and its global rank. Axes go by the names that frameworks give them.

The tree knows nothing of samples. It answers two questions:

- *Buckets*: into how many parts is data divided at an axis? At DP one for each data-parallel group;
  at CP one for each context-parallel rank of each of those; at WORLD one for each client. Stages of
  a pipeline work on the same samples, so PP divides nothing.
- *Delivery*: which client fetches which buckets? A client needs the data of the bucket that it is
  in. If the trainer broadcasts along some axes, the first client along them fetches for its peers:
  its own bucket and theirs. The peers fetch nothing, and neither do stages of a pipeline that need
  no data.

Invariants: every client of a tree has a different rank, and all nodes of a level have equally many
children. Every client that needs data gets it from exactly one client, which fetches the bucket
that it needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import AT_LEAST_1, COUNT, check_one_of, check_schema, require

AXES = ("PP", "DP", "CP", "TP")
"""Axes of a mesh, outermost first."""

WORLD = "WORLD"
"""All axes together: every client."""

DIVIDING_AXES = ("DP", "CP", "TP", WORLD)
"""Axes that data can be divided at."""

# Dimension names of torchtitan's meshes, and the axis that each is part of. Those that join
# data-parallel with context-parallel ranks, as "fsdp" does, do not determine which rank needs what.
_DP = ("dp", "batch", "dp_replicate", "dp_shard", "dp_shard_mod_ep", "dp_shard_in_ep")
_TORCH_NAMES = {"pp": "PP", **dict.fromkeys(_DP, "DP"), "cp": "CP", "tp": "TP"}


@dataclass(frozen=True, order=True)
class Place:
    """Coordinates of a client."""

    PP: int = 0
    DP: int = 0
    CP: int = 0
    TP: int = 0

    def __str__(self) -> str:
        return " ".join(f"{axis}={getattr(self, axis)}" for axis in AXES)


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

    @cached_property
    def _client_of(self) -> dict[int, int]:
        """By global rank, the number of the client."""
        return {rank: client for client, rank in enumerate(self.ranks.tolist())}

    @cached_property
    def _buckets_of(self) -> dict[int, tuple[int, ...]]:
        """By global rank, see `buckets_of`."""
        return {}


@dataclass(frozen=True, eq=False)
class ClientPlaceTree:
    """A mesh of clients. Made by `of` and `of_mesh`, or of any ranks."""

    ranks: Int64Array
    """[PP, DP, CP, TP] global rank of each client."""

    def __post_init__(self) -> None:
        if self.ranks.ndim != len(AXES) or not self.ranks.size:
            raise ConfigurationError(
                f"ranks of shape {self.ranks.shape} must be [PP, DP, CP, TP], none of them 0"
            )
        taken, counts = np.unique(self.ranks, return_counts=True)
        wrong = taken[(counts > 1) | (taken < 0)]
        if len(wrong):
            raise ConfigurationError(
                f"ranks {ranges(wrong)} are negative or stand for several clients; give each "
                "client a different rank"
            )

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> ClientPlaceTree:
        """
        Args:
            sizes: ranks along each axis, such as ``{"PP": 1, "DP": 4, "CP": 2, "TP": 2}``; axes
                left out have 1. Global ranks count with the last axis named fastest, as those of
                `torch.distributed.device_mesh.init_device_mesh` do.

        Raises:
            ConfigurationError: an unknown axis, or a size below 1.
        """
        for axis, size in sizes.items():
            check_one_of(AXES, axis=axis)
            if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
                raise ConfigurationError(f"{axis}={size!r} must be a whole number of ranks from 1")
        shape = [int(size) for size in sizes.values()]
        count = int(np.prod(shape, dtype=np.int64))
        return cls(in_order(np.arange(count, dtype=np.int64).reshape(shape), list(sizes)))

    @classmethod
    def of_mesh(cls, mesh: Any) -> ClientPlaceTree:
        """The tree of a `torch.distributed.device_mesh.DeviceMesh` with named dimensions: pp, dp
        (or torchtitan's batch, or its dp_replicate and dp_shard, which expert parallelism splits
        further), cp and tp, or the names of this class.

        Raises:
            ConfigurationError: a dimension has no name or an unknown one.
        """
        names = mesh.mesh_dim_names
        if not names:
            raise ConfigurationError(
                "the DeviceMesh has no names; make it with mesh_dim_names=('pp', 'dp', 'cp', 'tp') "
                "or some of them"
            )
        known = {**_TORCH_NAMES, **dict(zip(AXES, AXES))}
        for name in names:
            if name not in known:
                raise ConfigurationError(
                    f"dimension {name!r} of the DeviceMesh is not one of {tuple(known)}; give the "
                    "mesh of the dimensions that determine which rank needs which data, such as "
                    "pp, batch, cp and tp"
                )
        ranks = mesh.mesh.cpu().numpy().astype(np.int64)
        return cls(in_order(ranks, [known[name] for name in names]))

    # Sizes and places

    @cached_property
    def sizes(self) -> dict[str, int]:
        """By axis, the ranks along it."""
        return dict(zip(AXES, self.ranks.shape))

    def __len__(self) -> int:
        """Number of clients."""
        return int(self.ranks.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClientPlaceTree):
            return NotImplemented
        return np.array_equal(self.ranks, other.ranks)

    __hash__ = None  # type: ignore[assignment]

    def place(self, rank: int) -> Place:
        """Coordinates of a global rank.

        Raises:
            ConfigurationError: no client has this rank.
        """
        found = np.argwhere(self.ranks == rank)
        if not len(found):
            raise ConfigurationError(
                f"rank {rank} is not a client of the mesh {self.sizes}, whose ranks are "
                f"{ranges(self.ranks)}"
            )
        return Place(*found[0].tolist())

    def rank(self, place: Place | Mapping[str, int]) -> int:
        """Global rank at coordinates; axes left out are 0.

        Raises:
            ConfigurationError: there is no such client.
        """
        if not isinstance(place, Place):
            for axis in place:
                check_one_of(AXES, axis=axis)
            place = Place(**place)
        where = tuple(getattr(place, axis) for axis in AXES)
        for axis, position, size in zip(AXES, where, self.ranks.shape):
            if not 0 <= position < size:
                raise ConfigurationError(
                    f"{axis}={position} must be from 0 to {size - 1} in the mesh {self.sizes}"
                )
        return int(self.ranks[where])

    # Buckets

    def bucket_count(self, axis: str) -> int:
        """The buckets into which data is divided at an axis.

        Args:
            axis: "DP"; "CP" for each context-parallel rank of each data-parallel group; "TP" for
                each tensor-parallel peer of those; "WORLD" for every client of every stage.

        Raises:
            ConfigurationError: an unknown axis, or PP.
        """
        return int(np.prod([self.sizes[each] for each in _dividing(axis)], dtype=np.int64))

    def bucket_of(self, axis: str) -> Int64Array:
        """[PP, DP, CP, TP] bucket that holds each client's data; errors as `bucket_count`."""
        inner = _dividing(axis)
        numbers = np.arange(self.bucket_count(axis), dtype=np.int64)
        shape = [self.sizes[each] if each in inner else 1 for each in AXES]
        return np.broadcast_to(numbers.reshape(shape), self.ranks.shape)

    def clients_of_buckets(self, axis: str) -> Int64Array:
        """[buckets, clients] global ranks of those whose data each bucket holds: at WORLD of any
        stage, else of the first stage, which is where embeddings enter a model."""
        stages = slice(None) if axis == WORLD else slice(0, 1)
        order = self.bucket_of(axis)[stages].argsort(axis=None, kind="stable")
        return self.ranks[stages].ravel()[order].reshape(self.bucket_count(axis), -1)

    # Delivery

    def delivery(
        self, axis: str, broadcast_at: Sequence[str] = (), *, stages: str = "ends"
    ) -> Delivery:
        """Which client fetches which buckets at an axis.

        Args:
            axis: as for `bucket_count`.
            broadcast_at: axes along which the trainer broadcasts; the first client along them
                fetches for its peers.
            stages: stages of a pipeline that need data, one of `STAGES`.

        Raises:
            ConfigurationError: an unknown axis or kind of stages.
        """
        key = (axis, tuple(broadcast_at), stages)
        if key not in self._deliveries:
            check_one_of(STAGES, stages=stages)
            for each in broadcast_at:
                check_one_of(AXES, axis=each)
            first = tuple(slice(0, 1) if each in broadcast_at else slice(None) for each in AXES)
            fetched_by = np.broadcast_to(self.ranks[first], self.ranks.shape).copy()
            if stages != "all":
                fetched_by[1 : -1 if stages == "ends" else None] = -1
            self._deliveries[key] = Delivery(
                self.ranks.ravel(), self.bucket_of(axis).ravel(), fetched_by.ravel()
            )
        return self._deliveries[key]

    @cached_property
    def _deliveries(self) -> dict[tuple[str, tuple[str, ...], str], Delivery]:
        """Those that were asked for, since every step asks for the same."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are not pickled.
        return {"ranks": self.ranks}

    # JSON

    def to_dict(self) -> dict[str, Any]:
        """Lists and numbers, for JSON. Ranks that count up are written as the first one."""
        flat = self.ranks.ravel()
        counting = bool((np.diff(flat) == 1).all())
        ranks = int(flat[0]) if counting else flat.tolist()
        return {"sizes": self.sizes, "ranks": ranks}

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> ClientPlaceTree:
        """Inverse of `to_dict`.

        Raises:
            ConfigurationError, KeyError, TypeError, ValueError: it is not what `to_dict` returned.
        """
        check_schema(given, {"sizes": dict.fromkeys(AXES, AT_LEAST_1)})
        shape = [given["sizes"][axis] for axis in AXES]
        ranks = given["ranks"]
        require(math.prod(shape) < 2**24, "sizes", given["sizes"])
        check_schema(ranks, [COUNT] if isinstance(ranks, list) else COUNT, "ranks")
        if isinstance(ranks, int):
            ranks = np.arange(ranks, ranks + math.prod(shape))
        return cls(np.asarray(ranks, np.int64).reshape(shape))


def _dividing(axis: str) -> tuple[str, ...]:
    """Axes whose coordinates make up the number of a bucket, outermost first."""
    if axis == "PP":
        raise ConfigurationError(
            "axis='PP' divides nothing: stages of a pipeline work on the same samples; distribute "
            f"at one of {DIVIDING_AXES}"
        )
    check_one_of(DIVIDING_AXES, axis=axis)
    return AXES if axis == WORLD else AXES[1 : AXES.index(axis) + 1]


def ranges(ranks: Int64Array, most: int = 8) -> str:
    """Numbers as text, sorted: ``0-7, 12``. Beyond `most` ranges, only how many there are."""
    values = np.sort(ranks, axis=None)
    parts = np.split(values, np.flatnonzero(np.diff(values) > 1) + 1)
    texts = [str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts[:most]]
    if len(parts) > most:
        texts.append(f"and {len(parts) - most:,} more ranges")
    return ", ".join(texts)
