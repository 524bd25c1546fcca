"""Batches under a budget of padded tokens, from lengths that are known in advance.

`MaxTokens` and `BucketedMaxTokens` (ODB, App. I: GMT and BMT) fill batches from the shortest sample
up. Invariant: for every batch ``samples * longest <= max_tokens``, except a single sample that is
longer than the budget itself, which trains alone so that nothing is truncated.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import MemoryLimit
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.groups.groups import Groups
from evenstep.plan.offline.fixed_size import shares, sorted_runs
from evenstep.plan.offline.policy import OfflinePolicy
from evenstep.plan.rng import RandomStream, generator


@dataclass(frozen=True)
class MaxTokens(OfflinePolicy):
    """Full batches of the whole data set, sorted from short to long (ODB, App. I: GMT).

    Least padding and fullest batches of all; but every epoch runs from the shortest sample to the
    longest, in the same batches.
    """

    max_tokens: int
    """No batch of two or more samples has more tokens after padding (samples x longest)."""

    def __post_init__(self) -> None:
        check_given(max_tokens=self.max_tokens)
        check_at_least(1, max_tokens=self.max_tokens)
        super().__post_init__()

    @property
    def limit(self) -> MemoryLimit:
        return MemoryLimit(max_tokens=self.max_tokens)

    @cached_property
    def largest_group(self) -> int:
        # Any n samples are padded to at least the length of the n-th shortest of all.
        ascending = np.sort(self.lengths.values)
        padded = ascending * np.arange(1, len(ascending) + 1)
        return max(int(np.searchsorted(padded, self.max_tokens, side="right")), 1)

    def deal(self, lengths: Int64Array, world_size: int, *, seed: int, epoch: int) -> list[Groups]:
        count = len(lengths)
        order = sorted_runs(np.arange(count, dtype=np.int64), lengths, count)
        return shares(_filled(order, lengths, self.max_tokens, count), world_size)


@dataclass(frozen=True)
class BucketedMaxTokens(MaxTokens):
    """Full batches of like length from buckets of a shuffled epoch (ODB, App. I: BMT).

    The epoch is shuffled and cut into buckets, batches are filled within each from the shortest
    sample up, and then all batches are shuffled: other batches in every epoch, and no curriculum.
    """

    bucket_size: int = field(default=8192, kw_only=True)
    """Samples in a bucket, over all ranks. On the named distributions the default gives 0.1 to
    0.4 % more batches than `MaxTokens` and 0.1 to 0.2 % of padding; half as many samples double
    both. Larger buckets have next to nothing left to gain, and leave less to chance."""

    def __post_init__(self) -> None:
        check_given(bucket_size=self.bucket_size)
        check_at_least(1, bucket_size=self.bucket_size)
        super().__post_init__()

    @cached_property
    def largest_group(self) -> int:
        return min(super().largest_group, self.bucket_size)

    def deal(self, lengths: Int64Array, world_size: int, *, seed: int, epoch: int) -> list[Groups]:
        draw = generator(seed, epoch, RandomStream.MAX_TOKENS_ORDER)
        order = sorted_runs(draw.permutation(len(lengths)), lengths, self.bucket_size)
        batches = _filled(order, lengths, self.max_tokens, self.bucket_size)
        return shares(batches.take(draw.permutation(len(batches))), world_size)


def _filled(order: Int64Array, lengths: Int64Array, max_tokens: int, run: int) -> Groups:
    return Groups(order, fill_ascending(lengths[order], max_tokens, run))


def fill_ascending(lengths: Int64Array, max_tokens: int, run: int) -> Int64Array:
    """Where batches end if each takes as many of the next samples as the budget allows. Lengths 2,
    3, 3, 5, 8 and 9 tokens give 0, 3, 4, 5: three samples of 3 fit, and two of 5 do not.

    Args:
        lengths: [samples] positive, sorted within each `run` of consecutive samples.
        run: no batch holds samples of two runs.

    Returns:
        [batches + 1] from 0 to the number of samples.
    """
    total, length_at = len(lengths), lengths.item
    begin, ends = 0, [0]
    while begin < total:
        room = min(begin - begin % run + run, total) - begin
        # At least `fits` samples go in and at most `most`. Neighbours in a sorted run are nearly
        # of one length, so that the two soon meet.
        most = max(min(max_tokens // length_at(begin), room), 1)
        fits = max(min(max_tokens // length_at(begin + most - 1), most), 1)
        most = max(min(max_tokens // length_at(begin + fits - 1), most), 1)
        while fits < most:
            middle = (fits + most + 1) // 2
            if middle * length_at(begin + middle - 1) <= max_tokens:
                fits = middle
            else:
                most = middle - 1
        begin += fits
        ends.append(begin)
    return np.array(ends, np.int64)
