"""`EpochStart`: where a pass begins, for its batcher and its feeder."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.loader.batcher.spec import EpochSpec
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.sample_order import DealtOrder, EpochShare, remaining_indices
from evenstep.loader.transport.first_rows import FirstRows


@dataclass(frozen=True, kw_only=True)
class EpochStart:
    """The point of an epoch, at its beginning or in its middle, at which a pass begins."""

    progress: EpochProgress
    rank: int
    """Data-parallel rank that `progress` and `share` belong to."""
    world_size: int
    share: EpochShare | None
    """The rank's samples of the epoch; None for an iterable dataset."""
    dataset_moved: bool
    """The iterable dataset of the last pass may not be at its beginning."""

    first_rows: Callable[[list[Any]], FirstRows | None] = lambda indices: None
    """What ranks compare of what they begin with, once `indices` has begun: see
    `Epochs.first_rows`."""

    @property
    def needs_new_workers(self) -> bool:
        """Whether the workers of the last pass cannot serve this one: workers learn where to begin
        when they start."""
        return self.progress.worker_states is not None or self.dataset_moved

    def spec(self, serial: int) -> EpochSpec:
        """What the batcher gets.

        Args:
            serial: passes that the loader began before.
        """
        progress, share = self.progress, self.share
        size = share.size if share is not None else None
        if size is not None:
            size = max(size - progress.share.tail, 0) + len(progress.share.leftover)
        return EpochSpec(
            serial=serial,
            epoch=progress.epoch,
            share=size,
            entries=share.entries if isinstance(share, DealtOrder) else None,
            start=progress.start,
            received=progress.received,
            update=progress.update,
            remaining=progress.remaining,
            worker_states=progress.worker_states,
            skipped=len(progress.skipped),
            stream_digest=progress.stream.digest if progress.stream is not None else None,
        )

    def deals(self) -> Callable[[Int64Array], Iterable[tuple[int, Any]]] | None:
        """A function that returns the same for entries of the ranks' stream, as they are dealt to
        this rank; None where `indices` are all."""
        share, start = self.share, self.progress.start
        if not isinstance(share, DealtOrder):
            return None
        numbers = itertools.count(start.taken + start.queued)
        return lambda entries: [(next(numbers), index) for index in share.at(entries)]

    def indices(self) -> Iterator[tuple[int, Any]] | None:
        """Arrival numbers and dataset indices of what the rank has still to receive; None for an
        iterable dataset."""
        if self.share is None:
            return None
        return remaining_indices(self.share, self.progress.remaining, self.progress.checksum)
