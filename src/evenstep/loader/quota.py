"""Passes chained until so many samples have been received."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from evenstep.errors import ConfigurationError

if TYPE_CHECKING:
    from evenstep.batch.step_info import StepInfo
    from evenstep.loader.dataloader import DataLoader


def until(loader: DataLoader, samples: int) -> Iterator[tuple[Any, StepInfo]]:
    """The steps of one pass after the other: see `DataLoader.epochs`."""
    empty = 0
    while loader.samples < samples:
        before, epoch = loader.samples, loader.epoch
        steps = loader.steps()
        try:
            for batch, step in steps:
                yield batch, step
                # Every rank knows the samples of all, so all leave the pass after the same step.
                if step.ends_update and loader.samples >= samples:
                    return
        finally:
            steps.close()
        # A pass that resumes the end of an epoch may be empty, so one says nothing yet.
        empty = empty + 1 if loader.samples == before else 0
        if empty == 2:
            raise ConfigurationError(
                f"epochs {epoch - 1} and {epoch} had no sample for a step, with {before:,} of "
                f"{samples:,} samples received, so that number would never be reached; give every "
                'rank samples, or use exhausted="pad"'
            )
