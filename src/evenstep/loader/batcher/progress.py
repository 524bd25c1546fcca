"""Progress messages from the batcher to the trainer: how far a step or a round brings the epoch.

The trainer cannot work this out by itself: batches that are prefetched have been planned and
collated, and not yet received.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.batch.loss_scale import LossTotals
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.plan.length_moments import LengthMoments
from evenstep.protocol.window_buffer import RoundStart


@dataclass(frozen=True)
class BadSample:
    """A sample that was skipped, as `skip_bad_samples` allows."""

    epoch: int
    index: Any
    """Dataset index; for an iterable dataset the sample's arrival number on its rank."""
    reason: str


@dataclass(frozen=True, eq=False)
class RoundProgress:
    """A round begins."""

    start: RoundStart
    trained: Int64Array
    """Arrival numbers of the window that were trained on before, in a resumed round."""
    worker_states: WorkerStates | None
    """States from which the workers of an iterable dataset yield the window again."""
    bad: tuple[BadSample, ...]
    """Samples skipped since the last round began."""
    update: LossTotals = field(default_factory=LossTotals)
    """What the steps count that belong to the round's first update and came before the round."""
    lengths: tuple[LengthMoments, ...] = ()
    """Of the samples of each step of the round, of all ranks."""
    same_rows: tuple[int, ...] = ()
    """Ranks that began the pass with the same rows."""


@dataclass(frozen=True, eq=False)
class StepProgress:
    """One step. It counts once the trainer receives it."""

    members: Int64Array
    """Arrival numbers of the batch, in its order."""
    new_round: RoundProgress | None = None
    """Sent with the first step of a round."""


@dataclass(frozen=True)
class EpochEnd:
    """All steps of the pass have been delivered."""

    undelivered: int
    """Samples received and not trained on, because ``exhausted="stop"`` ended the pass."""
    bad: tuple[BadSample, ...]
    """Samples skipped since the last round began."""
