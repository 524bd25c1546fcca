"""Holds back the steps of an update until all of them are settled.

Where the gradients of several steps are added up before the optimizer steps, the loss scale of each
depends on what all of them train on: `evenstep.batch.loss_scale`. A round may end inside an update,
so steps wait here, from round to round if need be. Which steps are an update, their round says:
`RoundStart.updates`. The last update of an epoch may have fewer steps.

All ranks hold back the same steps and let go of them at the same exchange: both follow from the
numbers of steps alone.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from evenstep.batch.loss_scale import LossTotals
from evenstep.batch.step_info import RankLoads
from evenstep.loader.batcher.batcher_messages import StepProgress
from evenstep.protocol import PlannedStep


@dataclass(frozen=True, slots=True, eq=False)
class StepOfUpdate:
    """A step that may be collated: what its whole update trains on is known."""

    planned: PlannedStep
    progress: StepProgress
    totals: LossTotals
    """Of all steps of the update."""
    ends_update: bool
    loads: RankLoads | None
    """Of the steps of the update that this pass hands out, where ranks wait at its end."""


class WholeUpdates:
    """Takes steps one by one, and returns those of an update together."""

    def __init__(self, before: LossTotals, sync: str = "step", packed: bool = False) -> None:
        """
        Args:
            before: what the steps of the first update count that are not handed over here, because
                they belong to rounds before a resume.
            sync, packed: see `Policy`.
        """
        self._sync, self._packed = sync, packed
        self._held: list[tuple[PlannedStep, StepProgress]] = []
        self.totals = before
        """What the steps of the current update count so far."""

    @property
    def samples_held(self) -> int:
        """Samples of this rank in the steps that are held back."""
        return sum(len(progress.members) for _, progress in self._held)

    def add(self, planned: PlannedStep, progress: StepProgress | None) -> list[StepOfUpdate]:
        """Takes the next step of the epoch; returns the steps of its update, if it is the last.

        Args:
            progress: None for a step that the trainer has received before. It counts, but is not
                collated.
        """
        self.totals += LossTotals.of(planned.totals)
        if progress is not None:
            self._held.append((planned, progress))
        updates = planned.round.start.updates
        return [] if updates.micro_step(planned.index + 1) else self.end()

    def end(self) -> list[StepOfUpdate]:
        """The steps held back, as an update of fewer steps: the epoch has no further ones."""
        totals, self.totals = self.totals, LossTotals()
        held, self._held = self._held, []
        loads = None
        if self._sync == "update" and held:
            each = [RankLoads.of(planned.totals, packed=self._packed) for planned, _ in held]
            loads = functools.reduce(RankLoads.__add__, each)
        return [
            StepOfUpdate(planned, progress, totals, ends_update=place == len(held), loads=loads)
            for place, (planned, progress) in enumerate(held, 1)
        ]
