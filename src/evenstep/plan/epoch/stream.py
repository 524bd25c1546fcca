"""What is left of an epoch, for any number of ranks.

An epoch is one stream of positions 0, 1, 2, ... in the order that the sampler drew, independent of
how many ranks share it. W ranks deal it out in turn: rank r's a-th sample is the stream's entry
``a * W + r``. A checkpoint names the entries that each rank has not trained on; together they are a
new, shorter stream, which any other number of ranks can deal out again. So every chain of resumes,
such as 8 -> 2 -> 8 ranks, leaves the same set of positions to be trained on.

Invariant: a stream names every position at most once.
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
