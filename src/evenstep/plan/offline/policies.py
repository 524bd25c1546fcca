"""Policies that plan an epoch as a whole, from lengths that are known in advance.

They are upper bounds: a policy that sees all lengths can form groups at least as well as one that
sees a window of them. The price is a pass over the data before training, and another whenever the
tokenizer, the template or the augmentation changes. See `ReplayPolicy` for how such an epoch is
then trained on.

`Sorted` and `LengthGrouped` make batches of one size; `MaxTokens` and `BucketedMaxTokens` (ODB,
App. I: GMT and BMT) fill batches under a token budget from the shortest sample up.

Invariants: every sample is on some rank, none twice on the same rank, and ranks have equally many
batches. Only what wrap-around repeats is trained on twice: fewer than one batch, or sample, per
rank. Under a token budget ``samples * longest <= max_tokens`` holds for every batch, except a
single longer sample, which trains alone so that nothing is truncated.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import UNKNOWN_MODEL, Cost, MemoryLimit
from evenstep.errors import InvariantError
from evenstep.plan.argument_checks import check_at_least, check_given
from evenstep.plan.groups.groups import Groups
from evenstep.plan.lengths import Lengths
from evenstep.plan.policy import Plan, Policy, Proposal, Window
from evenstep.plan.rng import RandomStream, generator


@dataclass(frozen=True)
class OfflinePolicy(Policy):
    """Options of all offline policies; a subclass deals the epoch out."""

    lengths: Lengths = field(kw_only=True)
    """Lengths of all samples, by dataset index: an array, or the result of
    `evenstep.read_lengths`."""
    cost: Cost = field(default=UNKNOWN_MODEL, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", Lengths.of(self.lengths))

    @property
    @abc.abstractmethod
    def largest_group(self) -> int:
        """Samples of the largest group that `deal` may form."""

    @abc.abstractmethod
    def deal(
        self, lengths: Int64Array, world_size: int, *, seed: int, epoch: int
    ) -> list[Groups]: ...

    def window_size(self, buffer_size: int) -> int:
        return max(buffer_size, self.largest_group)

    def propose(self, window: Window) -> Proposal:
        raise InvariantError(f"{self.name} plans a whole epoch: see Policy.deal")

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        raise InvariantError(f"{self.name} plans a whole epoch: see Policy.deal")


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
