"""Batches of one size, from a whole data set in an order of its lengths.

`Sorted` takes all of it in one order: the least padding that a fixed batch size allows, and a data
set that is seen from short to long. `LengthGrouped` sorts only within megabatches of a shuffled
epoch: more padding, and hardly a curriculum.

Invariant, here and wherever `shares` deals batches out: every sample is on some rank, none twice on
the same rank, and ranks have equally many batches. Only what wrap-around repeats is trained on
twice: fewer than one batch, or sample, per rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.groups.groups import Groups
from evenstep.plan.offline.policy import OfflinePolicy
from evenstep.plan.rng import RandomStream, generator


@dataclass(frozen=True)
class Sorted(OfflinePolicy):
    """Batches of `batch_size` samples in the order of their lengths, over the whole data set.

    All epochs are equal. The order is a curriculum, which costs quality (ODB, section 4).
    """

    batch_size: int
    ascending: bool = field(default=True, kw_only=True)
    """Shortest first. False begins with the longest, which shows at once whether memory holds."""

    def __post_init__(self) -> None:
        check_given(batch_size=self.batch_size)
        check_at_least(1, batch_size=self.batch_size)
        super().__post_init__()

    @property
    def largest_group(self) -> int:
        return self.batch_size

    def deal(self, lengths: Int64Array, world_size: int, *, seed: int, epoch: int) -> list[Groups]:
        count = len(lengths)
        everything = np.arange(count, dtype=np.int64)
        order = sorted_runs(everything, lengths, count, longest_first=not self.ascending)
        return shares(_batches(order, self.batch_size), world_size)


@dataclass(frozen=True)
class LengthGrouped(OfflinePolicy):
    """Batches of `batch_size` samples of like length from a shuffled epoch (ODB, App. J: HFG).

    What Hugging Face's ``group_by_length`` does: the epoch's permutation is cut into megabatches,
    each is sorted, longest first, and rank r of W takes every W-th sample from the r-th on. So a
    step's batches together are ``W * batch_size`` neighbours, and padding grows with W. Not done is
    to move the longest sample to the front, which pads one batch more.
    """

    batch_size: int
    megabatch: int | None = field(default=None, kw_only=True)
    """Samples that are sorted together, on all ranks together. None takes 50 batches, fewer where
    that would leave fewer than four megabatches."""

    def __post_init__(self) -> None:
        check_given(batch_size=self.batch_size)
        check_at_least(1, batch_size=self.batch_size, megabatch=self.megabatch)
        super().__post_init__()

    @property
    def largest_group(self) -> int:
        return self.batch_size

    def deal(self, lengths: Int64Array, world_size: int, *, seed: int, epoch: int) -> list[Groups]:
        count = len(lengths)
        permutation = generator(seed, epoch, RandomStream.LENGTH_GROUPED_ORDER).permutation(count)
        order = sorted_runs(permutation, lengths, self.megabatch_size(count), longest_first=True)
        return [_batches(order[turns], self.batch_size) for turns in _turns(count, world_size)]

    def megabatch_size(self, count: int) -> int:
        """Samples of a megabatch of a data set of `count` samples."""
        if self.megabatch is not None:
            return self.megabatch
        return max(min(count // (self.batch_size * 4), 50), 1) * self.batch_size


def sorted_runs(
    order: Int64Array, lengths: Int64Array, run: int, *, longest_first: bool = False
) -> Int64Array:
    """`order`, with each `run` of consecutive samples sorted by length; ties stay as they were.

    Args:
        order: [samples] positions in `lengths`.
        lengths: int64, each positive and below 2**31.
        run: samples in each run; the last one may have fewer.
    """
    # Length and position share one int64 key, which sorts faster than a stable argsort.
    keys = lengths[order] << 32
    keys = np.arange(len(order)) + (-keys if longest_first else keys)
    whole = len(order) - len(order) % run
    keys[:whole].reshape(-1, run).sort(axis=1)
    keys[whole:].sort()
    positions: Int64Array = keys & 0xFFFFFFFF
    return order[positions]


def shares(batches: Groups, world_size: int) -> list[Groups]:
    """Deals batches out: rank r of W takes every W-th from the r-th on.

    The list is brought to a multiple of W by wrap-around: the leading batches come again.
    """
    return [batches.take(turns) for turns in _turns(len(batches), world_size)]


def _turns(count: int, world_size: int) -> list[Int64Array]:
    """For each rank, which of `count` samples or batches it takes."""
    padded = np.arange(-(-count // world_size) * world_size, dtype=np.int64) % count
    return [padded[rank::world_size] for rank in range(world_size)]


def _batches(order: Int64Array, batch_size: int) -> Groups:
    starts = np.arange(0, len(order), batch_size, dtype=np.int64)
    return Groups(order, np.append(starts, len(order)))
