"""The samples of a window sorted by length, with what each costs the vision tower."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, VisionLanguageCost
from evenstep.plan.policies.even.padded_runs import POSITION, SortedWindow
from evenstep.plan.policy import Window

IMAGES = 4
"""Row of `TwoPartWindow.numbers`, after those of `SortedWindow.numbers`."""


@dataclass(frozen=True)
class TwoPartWindow:
    """The samples of a window, shortest first, and what each costs the vision tower."""

    numbers: Int64Array
    """[5, samples] as `SortedWindow.numbers`, and images."""
    costs: Float64Array
    """[2, samples] as `SortedWindow.costs`, of the language model."""
    vision: Float64Array
    """[samples]."""

    @classmethod
    def of(cls, window: Window, cost: Cost) -> TwoPartWindow:
        language = cost.language if isinstance(cost, VisionLanguageCost) else cost
        samples = SortedWindow.of(window, language)
        order = samples.numbers[POSITION]
        images = np.zeros(len(window), np.int64) if window.images is None else window.images
        numbers = np.concatenate([samples.numbers, images[None, order]])
        return cls(numbers, samples.costs, vision_costs(window, cost)[order])

    def __len__(self) -> int:
        return len(self.vision)

    @property
    def images(self) -> Int64Array:
        """[samples]."""
        images: Int64Array = self.numbers[IMAGES]
        return images

    @property
    def samples(self) -> SortedWindow:
        """The same without the vision tower."""
        return SortedWindow(self.numbers[:IMAGES], self.costs)

    def in_tokens(self, ages: Int64Array) -> TwoPartWindow:
        """The same samples of other ages, a group's language cost being its padded tokens."""
        samples = self.samples.in_tokens(ages)
        numbers = np.concatenate([samples.numbers, self.numbers[IMAGES:]])
        return TwoPartWindow(numbers, samples.costs, self.vision)

    def take(self, places: Int64Array) -> TwoPartWindow:
        """Some of the samples, in ascending order."""
        return TwoPartWindow(self.numbers[:, places], self.costs[:, places], self.vision[places])


def vision_costs(window: Window, cost: Cost) -> Float64Array:
    """[samples] what each costs the vision tower; 0 for a cost of one part."""
    if window.vision is None or not isinstance(cost, VisionLanguageCost):
        return np.zeros(len(window))
    patches, _, pairs = window.vision
    return cost.of_patches(patches, pairs)
