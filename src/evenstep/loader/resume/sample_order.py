"""Which samples a rank receives, in which order: its share of an epoch.

The built-in order, and that of a sampler with ``shard_sampler=True``, is one order for the whole
job, which the ranks share. Where its length is known, any other number of ranks can share what is
left of it. Any other sampler yields one rank's share, of which nothing is known except that it
repeats.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from evenstep.arrays import Int64Array
from evenstep.errors import MismatchError
from evenstep.loader.transport.first_rows import READ
from evenstep.plan.epoch import Remaining, Stream

_CHECKED = 32  # samples of a step that its checksum covers
_BLOCK = 1 << 16  # indices converted to Python integers at a time


class ShardedOrder:
    """A share of one order for the whole job."""

    def __init__(self, order: Callable[[], npt.NDArray[Any]], positions: Int64Array) -> None:
        """
        Args:
            order: returns the dataset indices of the whole epoch.
            positions: [samples] of this rank's samples in that order.
        """
        self._order = order
        self._positions = positions
        self.head: list[Any] = []
        """The dataset indices that the order of all ranks begins with, once `read` was called."""

    @property
    def size(self) -> int:
        """Number of samples; None where it is unknown."""
        return len(self._positions)

    def read(self, places: Int64Array, begin: int) -> tuple[dict[int, Any], Iterator[Any]]:
        """The dataset indices at `places`, which are increasing and below `begin`, by place; and an
        iterator over all from `begin` on."""
        order = self._order()
        self.head = order[:READ].tolist()
        found = dict(zip(places.tolist(), order[self._positions[places]].tolist()))
        return found, self._from(order, begin)

    def _from(self, order: npt.NDArray[Any], begin: int) -> Iterator[Any]:
        # A list of all would take four times the memory.
        for first in range(begin, len(self._positions), _BLOCK):
            yield from order[self._positions[first : first + _BLOCK]].tolist()


class DealtOrder:
    """The share of a rank that is dealt its samples of one order for the whole job on demand. Its
    places are the entries of the stream that all ranks share."""

    size = None

    def __init__(self, order: Callable[[], npt.NDArray[Any]], stream: Stream) -> None:
        """
        Args:
            order: returns the dataset indices of the whole epoch.
            stream: of positions in that order.
        """
        self._order = order
        self._stream = stream
        self.head: list[Any] = []
        """As `ShardedOrder.head`."""
        self._loaded: npt.NDArray[Any] | None = None

    @property
    def entries(self) -> int:
        """Samples of the stream."""
        return len(self._stream)

    def at(self, entries: Int64Array) -> list[Any]:
        """Dataset indices of entries of the stream."""
        if self._loaded is None:
            self._loaded = self._order()
            self.head = self._loaded[:READ].tolist()
        indices: list[Any] = self._loaded[self._stream.positions(entries)].tolist()
        return indices

    def read(self, places: Int64Array, begin: int) -> tuple[dict[int, Any], Iterator[Any]]:
        return dict(zip(places.tolist(), self.at(places))), iter(())


class SamplerOrder:
    """A share that a sampler yields, or each of several ranks' turn of one without a length."""

    def __init__(
        self, sampler: Iterable[Any], rank: int = 0, world_size: int = 1, *, drop_last: bool = False
    ) -> None:
        """
        Args:
            world_size: ranks that share the sampler, sample by sample.
            drop_last: drop those that are too few for a turn of all ranks.
        """
        self._sampler = sampler
        self._rank, self._ranks, self._drop_last = rank, world_size, drop_last
        self.head: list[Any] = []
        """As `ShardedOrder.head`."""

    @property
    def size(self) -> int | None:
        return size_of(self._sampler)

    def _turns(self) -> Iterator[Any]:
        rest = iter(self._sampler)
        self.head = list(itertools.islice(rest, READ))
        rest = itertools.chain(self.head, rest)
        while turn := list(itertools.islice(rest, self._ranks)):
            if self._rank < len(turn) and not (self._drop_last and len(turn) < self._ranks):
                yield turn[self._rank]

    def read(self, places: Int64Array, begin: int) -> tuple[dict[int, Any], Iterator[Any]]:
        iterator = self._turns() if self._ranks > 1 else iter(self._sampler)
        wanted = set(places.tolist())
        # The range comes first, or an index would be lost at its end.
        found = {place: i for place, i in zip(range(begin), iterator) if place in wanted}
        return found, iterator


EpochShare = ShardedOrder | DealtOrder | SamplerOrder
"""One rank's samples of one epoch, in order."""


def size_of(source: Any) -> int | None:
    """Samples of a sampler or dataset; None where it does not know them."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def epoch_order(dataset: Any, *, shuffle: bool, seed: int, epoch: int) -> Int64Array:
    """[samples] dataset indices in the order of torch's ``DistributedSampler`` for one rank."""
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=1, rank=0, shuffle=shuffle, seed=seed
    )
    sampler.set_epoch(epoch)
    return np.fromiter(sampler, np.int64, len(sampler))


def sampler_order(sampler: Iterable[Any], total: int) -> npt.NDArray[Any]:
    """[total] all indices that a sampler yields.

    Raises:
        MismatchError: it does not yield `total` indices.
    """
    indices = list(sampler)
    if len(indices) != total:
        raise MismatchError(
            f"the sampler yields {len(indices)} indices where its length, or that of the "
            f"checkpoint, is {total}"
        )
    return as_array(indices)


def as_array(indices: list[Any]) -> npt.NDArray[Any]:
    """[n] dataset indices, which may be anything."""
    if all(type(index) is int for index in indices):
        return np.array(indices, np.int64)
    order = np.empty(len(indices), object)
    order[:] = indices
    return order


def sharded_order(
    order: Callable[[], npt.NDArray[Any]],
    stream: Stream,
    rank: int,
    world_size: int,
    *,
    drop_last: bool,
    dealt: bool = False,
) -> ShardedOrder | DealtOrder:
    """This rank's share of what `stream` leaves of an epoch. A whole epoch is shared as by
    ``DistributedSampler``: all ranks get equally many samples, by repeating or dropping a few.

    Args:
        dealt: samples are dealt on demand, so no rank has a share of its own, and none is repeated.
    """
    if stream.whole and drop_last:
        stream = Stream(stream.total // world_size * world_size)
    if dealt:
        return DealtOrder(order, stream)
    return ShardedOrder(order, stream.share(rank, world_size, even=stream.whole))


@dataclass(frozen=True, kw_only=True)
class OrderChecksum:
    """Checksum of a few trained-on indices. Detects on resume that the sampler's order has
    changed."""

    places: tuple[int, ...] = ()
    """Where these indices are in the order."""
    digest: int = 0

    @classmethod
    def of(cls, places: Iterable[int], indices: Iterable[Any]) -> OrderChecksum:
        pairs = sorted(zip(places, indices), key=lambda pair: pair[0])[:_CHECKED]
        return cls(places=tuple(p for p, _ in pairs), digest=_digest([i for _, i in pairs]))

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> OrderChecksum:
        return cls(places=tuple(saved["places"]), digest=saved["digest"])

    def to_dict(self) -> dict[str, Any]:
        return {"places": list(self.places), "digest": self.digest}

    def check(self, indices: list[Any]) -> None:
        """
        Args:
            indices: the dataset indices that are at `places` now.

        Raises:
            MismatchError: they differ from those of the checksum.
        """
        if self.places and _digest(indices) != self.digest:
            raise MismatchError(
                "the sampler yields another order than when the checkpoint was made, so samples "
                "would be lost or repeated; its order must be a function of (seed, epoch), as with "
                "set_epoch() or a generator that is seeded again before every epoch"
            )


def _digest(indices: list[Any]) -> int:
    return zlib.crc32(repr(indices).encode())


def remaining_indices(
    share: EpochShare, remaining: Remaining, checksum: OrderChecksum
) -> Iterator[tuple[int, Any]]:
    """Arrival numbers and dataset indices of what remains of a share, in order.

    Raises:
        MismatchError: the order is not that of `checksum`.
    """
    places = np.union1d(remaining.places, np.array(checksum.places, np.int64))
    found, rest = share.read(places, remaining.place)
    if set(places.tolist()) - found.keys():
        raise MismatchError(
            f"the checkpoint was made at place {places[-1]} of this rank's share, but the sampler "
            f"yields fewer than {remaining.place} indices now; use the sampler of the checkpoint"
        )
    checksum.check([found[place] for place in checksum.places])
    yield from zip(remaining.numbers.tolist(), [found[p] for p in remaining.places.tolist()])
    yield from enumerate(rest, remaining.number)
