"""What a batcher tells its trainer besides the batch: how far a step brings the epoch.

The trainer cannot know it from its own side, since what is prefetched is not yet received.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.loader.workers.iterable import Sources
from evenstep.protocol.window_buffer import RoundStart

__all__ = ["BadSample", "Mark", "RoundMark"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class BadSample:
    """A sample that was left out, as `skip_bad_samples` allows."""

    epoch: int
    index: Any
    """Of the dataset; for an iterable one the sample's number on its rank."""
    reason: str


@dataclass(frozen=True, eq=False)
class RoundMark:
    """A round begins."""

    start: RoundStart
    trained: Int64Array
    """Arrival numbers of the window that were trained on before, in a resumed round."""
    sources: Sources | None
    """How the workers of an iterable dataset make the window again."""
    bad: tuple[BadSample, ...]
    """Samples left out since the last mark."""


@dataclass(frozen=True, eq=False)
class Mark:
    """One step, when it is received."""

    members: Int64Array
    """Arrival numbers of the batch, in its order."""
    begins: RoundMark | None = None
    """With the first step of a round."""
