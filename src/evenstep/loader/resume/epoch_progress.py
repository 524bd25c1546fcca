"""Where the trainer is in an epoch: what it has received, whatever may be prefetched."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.batch.step_info import StepInfo
from evenstep.loader.batcher.progress import BadSample, StepProgress
from evenstep.loader.resume.sample_order import OrderChecksum
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.epoch.remaining import UNSIZED, Remaining
from evenstep.plan.epoch.stream import Progress, Stream
from evenstep.protocol.window_buffer import RoundStart

__all__ = ["EpochProgress"]


@dataclass(frozen=True, kw_only=True)
class EpochProgress:
    """The round that the trainer is in, how many of its steps it has had, and how this rank's
    arrival numbers came about."""

    epoch: int
    stream: Stream | None
    """What the epoch's ranks dealt out among them; None where the order is not one for the job."""
    share: Stream = field(default_factory=lambda: Stream(UNSIZED))
    """The places of this rank's share that arrival numbers count."""
    start: RoundStart = field(default_factory=RoundStart.empty)
    received: int = 0
    """Steps of the round that the trainer has had."""
    trained: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    """Arrival numbers that those steps trained on."""
    witness: OrderChecksum = field(default_factory=OrderChecksum)
    order: OrderChecksum = field(default_factory=OrderChecksum)
    """The same of other ranks, before the epoch was dealt out anew: by its positions."""
    sources: WorkerStates | None = None
    """How the workers of an iterable dataset make the window again."""
    stateless: bool = False
    """The iterable dataset cannot say how to."""
    skipped: tuple[BadSample, ...] = ()
    resumed: bool = False
    """Its pass was begun from a state, so the dataset was told where to begin."""

    @property
    def step(self) -> int:
        """Steps of the epoch that the trainer has had."""
        return self.start.step + self.received

    @property
    def untouched(self) -> bool:
        """Whether the epoch has not begun."""
        return (
            not self.step and self.start.taken == 0 and (self.stream is None or self.stream.whole)
        )

    @property
    def progress(self) -> Progress:
        """In arrival numbers."""
        unfinished = np.setdiff1d(self.start.numbers, self.trained, assume_unique=True)
        return Progress(self.start.taken, unfinished)

    @property
    def remaining(self) -> Remaining:
        return Remaining.of(self.share, self.progress)

    @property
    def place_progress(self) -> Progress:
        """In places of the rank's share."""
        left = self.share.after([self.progress])
        return Progress(left.tail, left.leftover)

    def after(self, step: StepInfo, mark: StepProgress, *, iterable: bool) -> EpochProgress:
        """Where the trainer is when it has received a step. A new position, so that a state that is
        saved meanwhile, in a signal handler say, is of before the step or of after it."""
        changes: dict[str, Any] = {}
        trained, begin = self.trained, self.start.step
        if (begins := mark.begins) is not None:
            trained, begin = begins.trained, begins.start.step
            changes = {
                "start": begins.start,
                "sources": begins.sources,
                "stateless": iterable and begins.sources is None,
                "skipped": self.skipped + begins.bad,
            }
        if step.indices:
            places = self.share.positions(mark.members).tolist()
            changes["witness"] = OrderChecksum.of(places, step.indices)
        return replace(
            self,
            received=step.step - begin + 1,
            trained=np.concatenate([trained, mark.members]),
            **changes,
        )

    def rewindowed(self) -> EpochProgress:
        """The same place in the epoch, from which windows are formed anew."""
        return EpochProgress(
            epoch=self.epoch,
            stream=self.stream,
            share=self.share.after([self.progress]),
            start=RoundStart.empty(self.start.round + bool(self.received), self.step),
            witness=self.witness,
            order=self.order,
            sources=self.sources,
            stateless=self.stateless,
            skipped=self.skipped,
        )

    def to_dict(self) -> dict[str, Any]:
        """This rank's own part, of numbers, text and lists."""
        lengths, supervised, patches = self.start.columns.tolist()
        window = self.start.numbers
        return {
            "taken": self.start.taken,
            "quota": self.start.quota,
            "numbers": window.tolist(),
            "lengths": lengths,
            "supervised": supervised,
            "patches": patches,
            "ages": self.start.ages.tolist(),
            "trained": np.searchsorted(window, self.trained).tolist(),
            "share": {"tail": self.share.tail, "leftover": self.share.leftover.tolist()},
            "witness": self.witness.to_dict(),
            "sources": self.sources.to_json() if self.sources else None,
            "skipped": [[_plain(bad.index), bad.reason] for bad in self.skipped],
        }

    @classmethod
    def from_dict(
        cls,
        rank: dict[str, Any],
        *,
        epoch: int,
        round: int,
        step: int,
        received: int,
        stream: Any,
        order: OrderChecksum,
    ) -> EpochProgress:
        """Inverse of `to_dict`."""
        numbers = np.array(rank["numbers"], np.int64)
        columns = np.array([rank["lengths"], rank["supervised"], rank["patches"]], np.int64)
        sources = rank["sources"]
        return cls(
            epoch=epoch,
            stream=stream,
            share=Stream(
                UNSIZED, rank["share"]["tail"], np.array(rank["share"]["leftover"], np.int64)
            ),
            start=RoundStart(
                round=round,
                step=step,
                taken=rank["taken"],
                quota=rank["quota"],
                numbers=numbers,
                columns=columns,
                ages=np.array(rank["ages"], np.int64),
            ),
            received=received,
            trained=numbers[np.array(rank["trained"], np.int64)],
            witness=OrderChecksum.from_dict(rank["witness"]),
            order=order,
            sources=WorkerStates.from_json(sources) if sources is not None else None,
            skipped=tuple(BadSample(epoch, index, why) for index, why in rank["skipped"]),
        )


def _plain(index: Any) -> Any:
    if isinstance(index, np.generic):
        index = index.item()
    return index if isinstance(index, (int, str)) else repr(index)
