"""`EpochCursor`: the trainer's position, from step to step and from pass to pass.

`EpochStart` is where a pass begins, for its batcher and its feeder.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.batch.step_info import StepInfo
from evenstep.cost.vision_language import Ratios
from evenstep.data.resumable import Rewinder, has_state
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.loader.batcher.batcher_messages import EpochSpec, StepProgress
from evenstep.loader.resume.epoch_progress import EpochProgress
from evenstep.loader.resume.epochs import Epochs
from evenstep.loader.resume.sample_order import DealtOrder, EpochShare, remaining_indices
from evenstep.loader.transport.first_rows import FirstRows
from evenstep.plan.fit import Fit


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
            too_long=progress.too_long[0],
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


class EpochCursor:
    """The epoch that is under way, or that the next pass begins or resumes, and how far it is.

    A pass goes through `start`, `note_start`, `note_step` for each step, and `end_pass`. A pass
    that was abandoned leaves the position where it is, for `to_save`; the next begins a new epoch.
    """

    def __init__(self, epochs: Epochs, labels: str | None) -> None:
        """
        Args:
            labels: how models read labels; None if the samples are to show it.
        """
        self._epochs = epochs
        self._labels = labels
        keeps_position = epochs.iterable and has_state(epochs.dataset)
        self._rewinder = Rewinder(epochs.dataset) if keeps_position else None
        epochs.set_epoch(0)
        # What is shared is found at its start.
        self._progress = self._read(EpochProgress(epoch=0, stream=None), labels)
        self._resumes = False  # the next pass resumes at `_progress`
        self.ranks: tuple[int, int] | None = None
        """(rank, world size) whose progress this is; None for that of any."""
        self.next_epoch = 0
        """Number of the next pass; while one is under way, of the one after it."""

    def set_epoch(self, epoch: int, *, under_way: bool) -> None:
        """
        Raises:
            MismatchError: a state was loaded that is in the middle of another epoch.
        """
        progress = self._progress
        if self._resumes and not progress.untouched and epoch != progress.epoch:
            raise MismatchError(
                f"set_epoch({epoch}), but the state that was loaded is at step {progress.step} of "
                f"epoch {progress.epoch}, which would be lost; begin the loop with epoch "
                "loader.epoch"
            )
        self.next_epoch = int(epoch)
        # After a pass that was abandoned the next one is a new epoch, and so is the state.
        if (progress.untouched or not self._resumes) and not under_way:
            self._progress = self._next()

    def _next(self) -> EpochProgress:
        self._epochs.set_epoch(self.next_epoch)
        return self._carried(EpochProgress(epoch=self.next_epoch, stream=None))

    def _begin(self, epoch: int) -> EpochProgress:
        return self._carried(self._epochs.begin(epoch))

    def _read(self, progress: EpochProgress, labels: str | None) -> EpochProgress:
        return replace(progress, start=replace(progress.start, labels=self._labels or labels))

    def _carried(self, progress: EpochProgress) -> EpochProgress:
        """An epoch that begins with what samples and steps have shown so far."""
        fits = self._progress.start.fits and (self._progress.start.fits[1],) * 2
        ratios, filled = (self.ratios, self.ratios), self._progress.start.filled
        read = self._read(progress, self.labels)
        so_far = self._progress.too_long[1]
        read = replace(read, samples=self.samples, too_long=(so_far, so_far))
        start = replace(read.start, ratios=ratios, fits=fits, filled=filled)
        return replace(read, start=start)

    @property
    def begun(self) -> bool:
        """Whether a pass has started, or a state was loaded."""
        return self._resumes or self.ranks is not None

    @property
    def labels(self) -> str | None:
        """How models read the labels of the job: as was said, or as its samples have shown."""
        return self._progress.start.labels

    @property
    def ratios(self) -> Ratios:
        """What pairs of tokens and patches were measured to cost: see `RoundStart.ratios`."""
        return self._progress.start.ratios[1]

    @property
    def fit(self) -> Fit | None:
        """What groups of the round may have: see `RoundStart.fits`."""
        fits = self._progress.start.fits
        return None if fits is None else fits[0]

    @property
    def samples(self) -> int:
        """Samples of all ranks in the steps received so far, those before a resume included."""
        return self._progress.samples

    def load(self, progress: EpochProgress, ranks: tuple[int, int] | None) -> None:
        """Resumes at `progress` in the next pass.

        Args:
            ranks: (rank, world size) whose progress it is; None for that of any.
        """
        progress = self._read(progress, progress.start.labels)
        self._progress = replace(progress, resumed=progress.worker_states is not None)
        self._resumes = True
        self.next_epoch = progress.epoch
        self.ranks = ranks

    def start(self, rank: int, world_size: int, *, here: bool) -> EpochStart:
        """Where the next pass begins on this rank.

        Args:
            here: it reads the dataset in this process, not a copy in a worker.

        Raises:
            MismatchError: the progress is that of another rank or number of ranks, or the dataset
                has changed.
        """
        if not self._resumes or self._progress.untouched:
            self._progress = self._begin(self.next_epoch)
        progress, saved_by = self._progress, self.ranks
        resumes = self._resumes and not progress.untouched
        if resumes and saved_by is not None and saved_by != (rank, world_size):
            raise MismatchError(
                f"the state was loaded by what was then rank {saved_by[0]} of {saved_by[1]}, "
                f"and this is rank {rank} of {world_size} now; call load_state_dict after "
                "torch.distributed.init_process_group"
            )
        share = self._epochs.share(progress, rank, world_size)
        return EpochStart(
            progress=progress,
            rank=rank,
            world_size=world_size,
            share=share,
            first_rows=functools.partial(self._epochs.first_rows, share),
            dataset_moved=self._rewinder is not None and self._rewinder.begin(here=here),
        )

    def note_start(self, start: EpochStart) -> None:
        """Notes that a pass has started. If it could not, the next `start` repeats it."""
        self._resumes = False
        self.ranks = start.rank, start.world_size
        self.next_epoch = start.progress.epoch + 1

    def note_step(self, step: StepInfo, message: StepProgress) -> None:
        """Notes that the trainer has received a step."""
        self._progress = self._progress.after(step, message, iterable=self._epochs.iterable)

    def end_pass(self, too_long: int, *, exhausted: bool) -> None:
        """Notes that a pass has delivered all its steps.

        Args:
            too_long: see `EpochEnd`.
            exhausted: this rank's samples ran out, not those of another rank alone.
        """
        if self._rewinder is not None:
            self._rewinder.finish(whole=exhausted and not self._progress.resumed)
        self._progress = replace(self._progress, too_long=(0, too_long))
        self._progress = self._next()

    def to_save(self, *, under_way: bool) -> EpochProgress:
        """The progress to put into a state.

        Raises:
            ConfigurationError: see `DataLoader.state_dict`.
        """
        if self._progress.untouched and not under_way:
            # The size of the dataset may have changed since.
            return self._begin(self._progress.epoch)
        if self._progress.stateless:
            raise ConfigurationError(
                f"the dataset {type(self._epochs.dataset).__name__} has no state_dict() and "
                "load_state_dict(), so it cannot be resumed in the middle of an epoch; give it or "
                "its iterator both, or pass replay=True to have it read again from its beginning"
            )
        return self._progress
