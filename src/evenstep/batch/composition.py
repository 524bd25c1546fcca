"""`Composition`: how like random batches the steps of a run are, read off in the training loop."""

from __future__ import annotations

import math

import numpy as np

from evenstep.batch.step_info import StepInfo
from evenstep.plan.length_moments import LengthMoments, composition


class Composition:
    """What the updates of a run hold, summed up as they come.

    An update is a step, or `StepInfo.accumulate` of them. One that has not ended yet does not
    count. All ranks find the same. ::

        composition = Composition()
        for batch, step in loader.steps():
            ...
            composition.add(step)
        print(composition.value)
    """

    def __init__(self) -> None:
        self._update = LengthMoments.empty()
        """Of the update that has not ended."""
        self._whole = LengthMoments.empty()
        self._within = 0.0
        self._squares = 0.0  # of the updates' tokens
        self.updates = 0

    def add(self, step: StepInfo) -> None:
        """Takes a step, in the order in which steps are trained."""
        self.add_moments(step.totals.moments.together(), ends_update=step.ends_update)

    def add_moments(self, moments: LengthMoments, *, ends_update: bool) -> None:
        """Takes a step of which only the moments of its lengths are known, of shape []."""
        self._update = self._update.along(moments).together()
        if ends_update:
            self.add_updates(self._update)
            self._update = LengthMoments.empty()

    def add_updates(self, moments: LengthMoments) -> None:
        """Takes whole updates, one per element of `moments`."""
        self._whole = self._whole.along(moments).together()
        self._within += float(moments.second.sum())
        self._squares += float((moments.tokens**2).sum())
        self.updates += int(np.size(moments.tokens))

    @property
    def value(self) -> float:
        """Token-weighted variance of length within updates, over what it would be if the same
        samples were dealt at random to as many updates of equal size: 1 for random batches, 0 where
        each update holds one length. 1 before the first update."""
        return composition(self._within, self._whole, self.updates) if self.updates else 1.0

    def within(self, data: LengthMoments) -> float:
        """The composition that these updates have of `data`, of shape []: the same as `value`, but
        already after a single update."""
        share = float(data.tokens) / float(self._whole.tokens)
        return composition(self._within * share, data, self.updates * share)

    @property
    def samples_per_update(self) -> float:
        """Mean, on all ranks together; 0 before the first update, as are those below."""
        return float(self._whole.samples) / max(self.updates, 1)

    @property
    def tokens_per_update(self) -> float:
        """Mean of the real tokens, on all ranks together."""
        return float(self._whole.tokens) / max(self.updates, 1)

    @property
    def tokens_per_update_cv(self) -> float:
        """Standard deviation of the tokens of an update over their mean."""
        if not self.updates:
            return 0.0
        mean = self.tokens_per_update
        return math.sqrt(max(0.0, self._squares / self.updates - mean * mean)) / mean
