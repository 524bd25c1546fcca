"""Messages of rank 0 to the demo's parent process. Plain and picklable."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep_demos.text.budget import Choice
from evenstep_demos.text.train import StepRecords


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The samples and the batch size are chosen."""

    choice: Choice
    seconds_per_token: float
    """Measured time of a padded token on one rank."""
    initial_loss: float
    """Held-out loss before training, of the first repeat."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """A step has ended."""

    run: str
    """With the number of the repeat."""
    done: int
    """Samples trained on, by all ranks."""
    total: int
    step: int
    loss: float


@dataclass(frozen=True, kw_only=True)
class TextRunFinished:
    """A run has ended."""

    run: str
    repeat: int
    records: list[StepRecords]
    """One per rank."""
    held_out_loss: float


Message = Chosen | RunProgress | TextRunFinished
