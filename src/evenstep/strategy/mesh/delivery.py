"""Into which buckets data is divided at an axis, and which client fetches which of them.

A client needs the data of the bucket that it is in. If the trainer broadcasts along some axes, the
first client along them fetches for its peers: its own bucket and theirs. The peers fetch nothing,
and neither do stages of a pipeline that need no data.

Invariant: every client that needs data gets it from exactly one client, which fetches the bucket
that it needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evenstep.arrays import BoolArray, Int64Array

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
