"""What is left of an epoch, for any number of ranks.

An epoch is one stream of positions 0, 1, 2, ... in the order that the sampler drew, independent of
how many ranks share it. W ranks deal it out in turn: rank r's a-th sample is the stream's entry ``a
* W + r``. A checkpoint names the entries that each rank has not trained on; together they are a
new, shorter stream, which any other number of ranks can deal out again. So every chain of resumes,
such as 8 -> 2 -> 8 ranks, leaves the same set of positions to be trained on. Invariant: a stream
names every position at most once.

`Remaining` is what one rank has still to receive of its share. A *place* names a sample of a rank's
share of the epoch: its position in the order in which the rank would receive it. An *arrival
number* counts received samples. The two are the same until an epoch is resumed after a change, such
as of the buffer size: then arrival numbers start from 0 again, for the places that are left. A
share is a `Stream` of places.

`next_deal` decides round by round which rank draws the stream's next samples. Where ranks share one
stream, equal counts of samples are unequal work: at the end of an epoch some rank has more left
than the others, and all wait for it. So samples are dealt as ranks use them up. A rank whose
samples are large uses up fewer, and draws fewer. The last ones go to whom holds least, in ever
smaller deals, so that all ranks run out together. Everything is counted in integers and known to
all ranks, so all reach the same deal.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.errors import InvariantError


@dataclass(frozen=True)
class Progress:
    """How far one rank has come in its share."""

    taken: int
    """Samples of the share that have been in the window: also the number of the rank's next one."""
    unfinished: Int64Array
    """Places in the share, among the first `taken`, that have not been trained on."""


@dataclass(frozen=True)
class Stream:
    """Positions that remain: `leftover`, then every one from `tail` to `total`."""

    total: int
    """Positions of the whole epoch."""
    tail: int = 0
    leftover: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Increasing positions below `tail`: as many as ranks can hold at a time, however long the
    epoch."""

    @property
    def whole(self) -> bool:
        """Whether this is a whole epoch, of which nothing has been trained on."""
        return not self.tail and not len(self.leftover)

    @property
    def digest(self) -> int:
        """Equal for equal streams."""
        return zlib.crc32(repr((self.total, self.tail)).encode() + self.leftover.tobytes())

    def __len__(self) -> int:
        return len(self.leftover) + self.total - self.tail

    def positions(self, entries: Int64Array) -> Int64Array:
        """[n] positions of the entries of the stream with these numbers."""
        early = entries < len(self.leftover)
        found = entries - len(self.leftover) + self.tail
        found[early] = self.leftover[entries[early]]
        return found

    def share(self, rank: int, world_size: int, *, even: bool) -> Int64Array:
        """[samples] positions dealt to one rank.

        Args:
            even: give every rank equally many, by repeating the start of the stream, as torch's
                ``DistributedSampler`` does; else the last ranks may have one fewer.
        """
        count = len(self)
        if even and count:
            entries = np.arange(rank, -(-count // world_size) * world_size, world_size) % count
        else:
            entries = np.arange(rank, count, world_size)
        return self.positions(entries)

    def after(self, progress: Sequence[Progress]) -> Stream:
        """The stream that remains after each rank's progress.

        Args:
            progress: one for each rank of the world that dealt out this stream, in rank order.
        """
        world_size = len(progress)
        count = len(self)
        # From this entry on no rank has taken anything.
        untouched = min(max(p.taken for p in progress) * world_size, count)
        open_entries = []
        for rank, one in enumerate(progress):
            late = np.arange(one.taken, -(-untouched // world_size))
            entries = np.concatenate([one.unfinished, late]) * world_size + rank
            # At or beyond the end are the repeats that made shares even.
            open_entries.append(entries[entries < untouched])
        return self.rest(np.concatenate(open_entries), untouched)

    def rest(self, entries: Int64Array, begin: int) -> Stream:
        """The stream of some entries below `begin` and all from there on.

        Raises:
            InvariantError: an entry is named twice.
        """
        entries = np.concatenate([entries, np.arange(begin, len(self.leftover))])
        leftover = np.sort(self.positions(entries))
        if len(leftover) > 1 and (np.diff(leftover) == 0).any():
            raise InvariantError("two ranks hold the same position of the epoch")
        tail = self.tail + max(begin - len(self.leftover), 0)
        return Stream(self.total, tail, leftover)


UNSIZED = 1 << 62
"""Total of a share of unknown size."""


@dataclass(frozen=True, kw_only=True)
class Remaining:
    """Some early places one by one, and then all from one place on."""

    numbers: Int64Array
    """[samples] arrival numbers of `places`."""
    places: Int64Array
    """[samples] increasing, and below `place`."""
    number: int
    """Arrival number of `place`; those of later places follow."""
    place: int

    @classmethod
    def of(cls, share: Stream, progress: Progress) -> Remaining:
        """The rest of `share` after the rank's progress."""
        late = np.arange(progress.taken, len(share.leftover), dtype=np.int64)
        numbers = np.concatenate([progress.unfinished, late])
        number = max(progress.taken, len(share.leftover))
        return cls(
            numbers=numbers,
            places=share.positions(numbers),
            number=number,
            place=share.tail + number - len(share.leftover),
        )

    @classmethod
    def everything(cls) -> Remaining:
        none = np.empty(0, np.int64)
        return cls(numbers=none, places=none, number=0, place=0)

    def place_of(self, number: int) -> int:
        """The place of an arrival number that remains."""
        if number >= self.number:
            return number - self.number + self.place
        return int(self.places[np.searchsorted(self.numbers, number)])

    def select(self, begin: int, count: int) -> tuple[Int64Array, Int64Array]:
        """The places that remain among the `count` places from `begin` on.

        Returns:
            Their positions among these `count` places, and their arrival numbers.
        """
        low, high = np.searchsorted(self.places, [begin, begin + count])
        later = np.arange(max(begin, self.place), max(begin + count, self.place))
        return (
            np.concatenate([self.places[low:high], later]) - begin,
            np.concatenate([self.numbers[low:high], later - self.place + self.number]),
        )


@dataclass(frozen=True, kw_only=True)
class Holdings:
    """What each rank holds between two rounds."""

    samples: Int64Array
    """[ranks] samples in its window."""
    tokens: Int64Array
    """[ranks] their tokens."""
    queued: Int64Array
    """[ranks] samples dealt to it that no window has held."""
    seen_samples: int
    """Samples in the last round's windows of all ranks, to estimate a mean length from."""
    seen_tokens: int
    """Their tokens."""

    @property
    def mean(self) -> tuple[int, int]:
        """The mean length as a fraction: tokens of so many samples, a million or so at most, that
        multiples of it fit 64 bits."""
        shift = max(self.seen_samples.bit_length() - 20, 0)
        return max(self.seen_tokens >> shift, 1), max(self.seen_samples >> shift, 1)


def next_deal(held: Holdings, *, left: int, window: int) -> Int64Array:
    """How many of the next samples each rank draws.

    Ranks are brought to the same number of tokens, a queued sample counting the mean length: a
    window to plan with and, for workers to prepare meanwhile, another one, or half of a rank's
    share of what is left if that is less, as the lengths of queued samples are not known. No deal
    is more than half of what is left. For example, with a mean of 10 tokens and 8 samples left, 4
    are dealt::

        tokens held   30  10  20    -> draws  1  2  1    -> 40 30 30

    Args:
        left: samples of the stream that no rank has drawn.
        window: samples of mean length that a window should hold. No rank draws more than makes two
            windows of samples.

    Returns:
        [ranks] int64, in all at most `left`.
    """
    ranks = len(held.samples)
    tokens, samples = held.mean
    queue = min(window, left // (2 * ranks))
    loads = held.tokens * samples + held.queued * tokens
    free = np.maximum(2 * window - held.samples - held.queued, 0)
    most = left // 2 if left > 2 * ranks else left
    wanted = _below(loads, tokens, (window + queue) * tokens)
    if int(np.minimum(wanted, free).sum()) > most:
        wanted = _leveled(loads, tokens, most)
    dealt: Int64Array = np.minimum(wanted, free)
    return dealt


def next_window(held: Holdings, *, window: int) -> Int64Array:
    """[ranks] how many of its queued samples each rank adds to its window: to bring it to the
    tokens of `window` samples of mean length, but no more samples than that."""
    tokens, samples = held.mean
    wanted = _below(held.tokens * samples, tokens, window * tokens)
    free = np.maximum(window - held.samples, 0)
    found: Int64Array = np.minimum(np.minimum(wanted, free), held.queued)
    return found


def _leveled(loads: Int64Array, unit: int, count: int) -> Int64Array:
    """Deals `count` units, one by one, each to the first rank with the lowest load.

    Args:
        loads: [ranks] int64.
        unit: positive; what one more adds to a load.

    Returns:
        [ranks] units of each.
    """
    low, high = int(loads.min()), int(loads.max()) + unit * (count // len(loads) + 1)
    while low < high:  # the highest level that takes at most `count`
        middle = (low + high + 1) // 2
        if int(_below(loads, unit, middle).sum()) <= count:
            low = middle
        else:
            high = middle - 1
    dealt = _below(loads, unit, low)
    # All loads are at the level or above it; the rest goes to those that are exactly at it.
    rest = count - int(dealt.sum())
    dealt[np.flatnonzero(loads + dealt * unit == low)[:rest]] += 1
    return dealt


def _below(loads: Int64Array, unit: int, level: int) -> Int64Array:
    """[ranks] units until each load has reached the level, or 2**62, which no sum of lengths is
    near."""
    return np.maximum(-((loads - min(level, 2**62)) // unit), 0)


def dealt_entries(counts: Int64Array, rank: int, begin: int) -> Int64Array:
    """The entries of the stream that one rank gets in a deal.

    Ranks draw in turn, as long as they have any to draw: with counts 3, 1, 2 the entries go to
    ranks 0 1 2, 0 2, 0. So with equal counts rank r of W gets every W-th entry.

    Args:
        counts: [ranks] samples that each draws.
        begin: first entry of the deal.

    Returns:
        [counts[rank]] int64, increasing.
    """
    turns = np.arange(int(counts[rank]))
    ordered = np.sort(counts)
    # In turns before this one each rank has drawn min(its count, turn) entries.
    drawn = np.concatenate([[0], ordered.cumsum()])
    done = np.searchsorted(ordered, turns, side="right")  # ranks that have drawn all theirs
    before = drawn[done] + (len(counts) - done) * turns
    earlier = np.sort(counts[:rank])
    ahead = rank - np.searchsorted(earlier, turns, side="right")
    found: Int64Array = begin + before + ahead
    return found
