"""The samples of a window sorted by length, and the limits of the groups made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes, VisionLanguageCost
from evenstep.cost.vision_language import language_part
from evenstep.plan.policies.even.timed import counts
from evenstep.plan.policy import Window

FLAT = 1e-12
"""Share of a sample's cost below which what the next one adds is rounding."""
LENGTH, TIME, POSITION, AGE, PATCHES, IMAGES = range(6)
"""Rows of `SortedWindow.numbers`."""
SINGLE, EACH = range(2)
"""Rows of `SortedWindow.costs`."""


@dataclass(frozen=True)
class SortedWindow:
    """The samples of a window, shortest first; samples of equal length in order of arrival."""

    numbers: Int64Array
    """[6, samples] length, the time that it takes (see `timed`), position in the window, rounds
    waited, and patches and images or 0."""
    costs: Float64Array
    """[2, samples] cost of a group of one such sample, and what each further one adds: the
    language part of a cost of two parts."""
    vision: Float64Array
    """[samples] cost of each sample for the vision tower; 0 for a cost of one part."""

    @classmethod
    def of(cls, window: Window, cost: Cost) -> SortedWindow:
        count = len(window)
        # Length and position share one int64 key, which sorts faster than a stable argsort.
        keys = (window.lengths << 32) + np.arange(count)
        keys.sort()
        order = keys & 0xFFFFFFFF
        numbers = np.zeros((6, count), np.int64)
        numbers[LENGTH] = keys >> 32
        numbers[TIME] = counts(cost, numbers[LENGTH], packed=False)
        numbers[POSITION] = order
        numbers[AGE] = window.ages[order]
        for row, counted in ((PATCHES, window.patches), (IMAGES, window.images)):
            if counted is not None:
                numbers[row] = counted[order]
        language = language_part(cost)
        single, pair = (
            language(GroupShapes.of_equals(n, numbers[LENGTH]), packed=False) for n in (1, 2)
        )
        single = np.asarray(single, np.float64)
        each = np.asarray(pair, np.float64) - single
        each[each <= FLAT * single] = 0.0
        return cls(numbers, np.stack([single, each]), vision_costs(window, cost)[order])

    def __len__(self) -> int:
        return len(self.vision)

    def take(self, places: Int64Array) -> SortedWindow:
        """Some of the samples; `places` ascends."""
        # Three times as fast as an index.
        numbers, costs = self.numbers.take(places, axis=1), self.costs.take(places, axis=1)
        return SortedWindow(numbers, costs, self.vision[places])

    def timed(self, ages: Int64Array) -> SortedWindow:
        """The same samples with other ages, as long as the time they take."""
        numbers = self.numbers.copy()
        numbers[LENGTH], numbers[AGE] = numbers[TIME], ages
        lengths = numbers[TIME].astype(np.float64)
        return SortedWindow(numbers, np.stack([lengths, lengths]), self.vision)

    def cost_of(self, group: Int64Array) -> float:
        """Cost of a group, except for the vision tower. `group` holds places and ascends."""
        single, each = self.costs[:, group[-1]]
        return float(single + (len(group) - 1) * each)


@dataclass(frozen=True, kw_only=True)
class RunLimits:
    """What every group must keep to, unless it is a single sample."""

    max_tokens: int
    """Padded tokens."""
    max_patches: int | None
    max_images: int | None
    due: int
    """Rounds after which a sample has to go; 0 where each group has to hold the oldest sample."""

    @property
    def counted(self) -> tuple[tuple[int, int], ...]:
        """Rows of `SortedWindow.numbers` that are limited, and the limits."""
        both = ((PATCHES, self.max_patches), (IMAGES, self.max_images))
        return tuple((row, limit) for row, limit in both if limit is not None)


def vision_costs(window: Window, cost: Cost) -> Float64Array:
    """[samples] cost of each for the vision tower, in order of arrival; 0 for a cost of one
    part."""
    if window.vision is None or not isinstance(cost, VisionLanguageCost):
        return np.zeros(len(window))
    patches, _, pairs = window.vision
    return cost.of_patches(patches, pairs)
