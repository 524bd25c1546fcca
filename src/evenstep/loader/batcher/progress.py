"""What a batcher tells its trainer besides the batch: how far a step brings the epoch.

The trainer cannot know it from its own side, since what is prefetched is not yet received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from evenstep.arrays import Int64Array
from evenstep.loader.workers.iterable import WorkerStates
from evenstep.protocol.window_buffer import RoundStart

__all__ = ["BadSample", "RoundProgress", "StepProgress"]


@dataclass(frozen=True)
class BadSample:
    """A sample that was left out, as `skip_bad_samples` allows."""

    epoch: int
    index: Any
    """Of the dataset; for an iterable one the sample's number on its rank."""
    reason: str


@dataclass(frozen=True, eq=False)
class RoundProgress:
    """A round begins."""

    start: RoundStart
    trained: Int64Array
    """Arrival numbers of the window that were trained on before, in a resumed round."""
    sources: WorkerStates | None
    """How the workers of an iterable dataset make the window again."""
    bad: tuple[BadSample, ...]
    """Samples left out since the last mark."""


@dataclass(frozen=True, eq=False)
class StepProgress:
    """One step, when it is received."""

    members: Int64Array
    """Arrival numbers of the batch, in its order."""
    begins: RoundProgress | None = None
    """With the first step of a round."""
