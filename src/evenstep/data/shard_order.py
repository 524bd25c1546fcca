"""`ShardOrder`: position in a source's order -> (pass, shard, index), a function of (seed, pass).

A pass reads all shards, one whole shard after the other, so only one has to be in memory. Shards
come in random order, and so do the samples of a shard.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.rng import RandomStream, generator


class SampleLocation(NamedTuple):
    """Where the sample at a position is stored."""

    pass_number: int
    shard: int
    index: int  # type: ignore[assignment]
    """In the stored order of the shard."""


class ShardPart(NamedTuple):
    """The rest of a shard in a pass, from a position on."""

    pass_number: int
    shard: int
    position: int
    """Position of its first sample."""
    indices: Int64Array
    """[samples] index of each in the shard, in the order of the pass."""


class ShardOrder:
    """Stateless: any position can be asked for at any time."""

    def __init__(
        self,
        sizes: Sequence[int] | Int64Array,
        *,
        seed: int,
        name: str,
        shuffle_shards: bool = True,
        shuffle_samples: bool = True,
    ) -> None:
        """
        Args:
            sizes: [shards] samples of each; some positive.
            seed: of the order.
            name: of the source; sources of other names have other orders.
        """
        self.sizes = np.asarray(sizes, np.int64)
        self.size = int(self.sizes.sum())
        self._key = (seed, zlib.crc32(name.encode()))
        self._shuffle_shards, self._shuffle_samples = shuffle_shards, shuffle_samples
        self._pass: tuple[int, Int64Array, Int64Array] | None = None
        self._shard: tuple[tuple[int, int], Int64Array] | None = None

    def where(self, position: int) -> SampleLocation:
        """Location of the sample at a position, from 0."""
        pass_number, within = divmod(position, self.size)
        shards, ends = self._shards(pass_number)
        turn = int(ends.searchsorted(within, side="right"))
        shard = int(shards[turn])
        offset = within - int(ends[turn] - self.sizes[shard])
        return SampleLocation(pass_number, shard, int(self._indices(pass_number, shard)[offset]))

    def parts(self, position: int) -> Iterator[ShardPart]:
        """The rest of the shard at a position, and those after it, without end."""
        pass_number, within = divmod(position, self.size)
        while True:
            shards, ends = self._shards(pass_number)
            for turn in range(int(ends.searchsorted(within, side="right")), len(shards)):
                shard = int(shards[turn])
                offset = within - int(ends[turn] - self.sizes[shard])
                indices = self._indices(pass_number, shard)[offset:]
                if len(indices):
                    at = pass_number * self.size + within
                    yield ShardPart(pass_number, shard, at, indices)
                within = int(ends[turn])
            pass_number, within = pass_number + 1, 0

    def _shards(self, pass_number: int) -> tuple[Int64Array, Int64Array]:
        """[shards] shards of a pass in order, and [shards] samples up to the end of each."""
        if self._pass is None or self._pass[0] != pass_number:
            shards = np.arange(len(self.sizes))
            if self._shuffle_shards:
                shards = generator(*self._key, pass_number, RandomStream.SHARD_ORDER).permutation(
                    len(self.sizes)
                )
            self._pass = (pass_number, shards, self.sizes[shards].cumsum())
        return self._pass[1], self._pass[2]

    def _indices(self, pass_number: int, shard: int) -> Int64Array:
        if not self._shuffle_samples:
            return np.arange(self.sizes[shard])
        if self._shard is None or self._shard[0] != (pass_number, shard):
            key = (*self._key, pass_number, shard, RandomStream.SHARD_SAMPLES)
            indices = generator(*key).permutation(int(self.sizes[shard]))
            self._shard = ((pass_number, shard), indices)
        return self._shard[1]
