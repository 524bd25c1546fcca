"""All that is left at the end of an epoch, in padded groups of equal cost.

Nothing can stay behind then, and there is no choice of what goes first. So every rank cuts its
sorted samples into as many runs as the rank that needs most, with the lowest limit on their cost
for which that is enough: costs are as even as can be on the rank. The costliest meet.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array, prefix_sums
from evenstep.plan.groups import Groups, align
from evenstep.plan.policies.even.padded_runs import ROUNDING
from evenstep.plan.policies.even.sorted_window import (
    POSITION,
    TIME,
    RunLimits,
    SortedWindow,
)

_HALVINGS = 24


@dataclass(frozen=True, kw_only=True)
class LastSamples:
    """The samples of a window, longest first, and how many of them go together."""

    positions: Int64Array
    """[samples] in the window."""
    times: Int64Array
    """[samples] what each counts: see `timed`."""
    costs: Float64Array
    """[2, samples] as `SortedWindow.costs`."""
    room: Int64Array
    """[samples] how many a run may hold that begins with each, at least 1."""

    @classmethod
    def of(cls, samples: SortedWindow, limits: RunLimits, row: int = TIME) -> LastSamples:
        numbers = samples.numbers[:, ::-1]
        count = len(samples)
        begins = np.arange(count)
        room = np.minimum(limits.max_tokens // numbers[row], count - begins)
        for row, limit in limits.counted:
            running = prefix_sums(numbers[row])
            ends = np.searchsorted(running, running[:-1] + limit, side="right") - 1
            room = np.minimum(room, ends - begins)
        costs = np.ascontiguousarray(samples.costs[:, ::-1])
        return cls(
            positions=numbers[POSITION],
            times=numbers[TIME],
            costs=costs,
            room=np.maximum(room, 1),
        )

    def needed(self) -> int:
        """Groups that all samples make under the memory limit."""
        return len(self.full_cuts()) - 1

    def total(self) -> float:
        """What those groups cost."""
        return float(self._costs(self.full_cuts()).sum())

    def full_cuts(self) -> list[int]:
        """Where runs begin if each is as large as memory allows; and the number of samples."""
        return self._cut(np.inf)

    def costs_of_few(self, quantiles: int) -> Float64Array:
        """[quantiles] of what groups cost if they are as few as can be; largest first."""
        costs = self._costs(self._even_cuts(self.needed()))
        levels = (np.arange(quantiles) + 0.5) / quantiles
        return np.asarray(np.quantile(costs, levels)[::-1], np.float64)

    def cut(self, steps: int) -> Groups:
        """As many groups as steps, the costliest first. All samples are in one, unless the memory
        limit makes more groups of them.

        Args:
            steps: at least 1, and no more than samples.
        """
        groups = align(Groups(self.positions, np.array(self._even_cuts(steps), np.int64)), steps)
        place = np.empty(len(self.positions), np.int64)
        place[self.positions] = np.arange(len(place))
        single, each = self.costs[:, place[groups.members[groups.offsets[:-1]]]]
        return groups.take(np.argsort(-(single + (groups.sizes - 1) * each), kind="stable"))

    def _even_cuts(self, steps: int) -> list[int]:
        """Where runs begin if none of several samples costs more than the lowest limit that makes
        no more runs than steps; and the number of samples."""
        cuts = self.full_cuts()
        if len(cuts) - 1 > steps:
            return cuts
        low, high = 0.0, float(self._costs(cuts).max())
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tried = self._cut(middle)
            if len(tried) - 1 <= steps:
                cuts, high = tried, middle
            else:
                low = middle
        return cuts

    def _cut(self, most: float) -> list[int]:
        """Where runs begin if none of several samples costs more than `most`; and the number of
        samples."""
        single, each = self.costs
        room = self.room
        if np.isfinite(most):
            further = np.full(len(single), np.inf)
            np.divide(most * (1 + ROUNDING) - single, each, out=further, where=each > 0)
            room = np.maximum(np.minimum(further + 1, room), 1).astype(np.int64)
        after = np.minimum(np.arange(len(single)) + room, len(single)).tolist()
        cuts = [0]
        while cuts[-1] < len(after):
            cuts.append(after[cuts[-1]])
        return cuts

    def _costs(self, cuts: list[int]) -> Float64Array:
        """[groups] what runs cost."""
        single, each = self.costs[:, cuts[:-1]]
        return np.asarray(single + (np.diff(cuts) - 1) * each, np.float64)


def profile(costs: Float64Array, steps: int) -> Float64Array:
    """[steps] what the last steps cost on a rank, more or less; largest first.

    Args:
        costs: [ranks, quantiles] `LastSamples.costs_of_few` of each.
    """
    levels = (np.arange(costs.shape[1]) + 0.5) / costs.shape[1]
    wanted = (np.arange(steps) + 0.5) / steps
    return np.asarray(np.interp(wanted, levels, costs.mean(axis=0)), np.float64)
