"""Messages of ranks to the demo's parent process. Plain and picklable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.strategy.sample_table import SampleTable


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A rank waits for the service of a run."""

    run: str


@dataclass(frozen=True, kw_only=True)
class Took:
    """Rank 0 has made a step."""

    run: str
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True, eq=False)
class ReceivedMicroBatch:
    """A micro-batch as received: the rank's tokens, in any order, with document and position."""

    samples: SampleTable
    document: npt.NDArray[np.int32]
    """[tokens] row of `samples`."""
    position: npt.NDArray[np.int32]
    """[tokens] within the document."""
    token: npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, eq=False)
class StepRecord:
    """One step on one rank."""

    step: int
    micro_batches: Sequence[ReceivedMicroBatch]
    wait: float
    """Seconds that the rank waited for its data."""
    processor: dict[str, float]
    """Processor seconds of forward and backward passes, by module."""
    loss: float
    """Summed over this rank's supervised tokens."""
    supervised: int
    seconds: float
    """Seconds of the whole step, data included."""
    encoded: tuple[SampleTable, ...] = ()
    """Samples whose images this rank has encoded."""


@dataclass(frozen=True, kw_only=True)
class ServiceRunFinished:
    """A rank has made all steps of a run."""

    run: str
    rank: int
    records: Sequence[StepRecord] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
