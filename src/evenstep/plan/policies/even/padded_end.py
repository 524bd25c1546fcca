"""All that is left at the end of an epoch, in padded groups whose costs meet.

Nothing can stay behind then, and the groups of long samples cost what they cost: where one sample
has more than half of the budget, its group has no room for another. So ranks first agree on what
the groups of a rank typically cost, from the quantiles of what each would make of its samples: that
is the *profile* of the last steps. Then every rank cuts its samples into as many runs, from the
longest on, each for the step of the profile that it fills best; the short ones, which can cost
anything, take the rest. The rank scales the profile as low as it can and still place all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.groups.alignment import align
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policies.even.padded_runs import (
    LENGTH,
    PATCHES,
    POSITION,
    SINGLE,
    SortedWindow,
)
from evenstep.plan.policies.even.padded_runs_numba import ROUNDING

_HALVINGS = 24
_UNFIT = 1e30
"""Loss of a run that costs more than its target: more than any other."""


@dataclass(frozen=True, kw_only=True)
class LastSamples:
    """The samples of a window, longest first, and how many of them go together."""

    positions: Int64Array
    """[samples] in the window."""
    costs: Float64Array
    """[2, samples] as `SortedWindow.costs`."""
    room: Int64Array
    """[samples] how many a run may hold that begins with each, at least 1."""

    @classmethod
    def of(cls, samples: SortedWindow, max_tokens: int, max_patches: int | None) -> LastSamples:
        numbers = samples.numbers[:, ::-1]
        count = len(samples)
        begins = np.arange(count)
        room = np.minimum(max_tokens // numbers[LENGTH], count - begins)
        if max_patches is not None:
            running = np.concatenate([[0], np.cumsum(numbers[PATCHES])])
            ends = np.searchsorted(running, running[:-1] + max_patches, side="right") - 1
            room = np.minimum(room, ends - begins)
        costs = np.ascontiguousarray(samples.costs[:, ::-1])
        return cls(positions=numbers[POSITION], costs=costs, room=np.maximum(room, 1))

    def needed(self) -> int:
        """Groups that all samples make under the memory limit."""
        return len(self._cut(np.inf)) - 1

    def even_costs(self, quantiles: int) -> Float64Array:
        """[quantiles] of what groups cost if there are as few as can be, and all as cheap as then
        can be; largest first."""
        cuts = self._cut(np.inf)
        groups, costs = len(cuts) - 1, self._costs(cuts)
        low, high = 0.0, float(costs.max())
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            cuts = self._cut(middle)
            if len(cuts) - 1 <= groups:
                costs, high = self._costs(cuts), middle
            else:
                low = middle
        levels = (np.arange(quantiles) + 0.5) / quantiles
        return np.asarray(np.quantile(costs, levels)[::-1], np.float64)

    def fill(self, targets: Float64Array) -> Groups:
        """One group for each target, in their order. All samples are in one, unless the memory
        limit makes more groups of them.

        Args:
            targets: [steps] cost that each group should have or a certain share of it, the same
                for all; largest first, and no more than samples.
        """
        cuts = self._cut(np.inf)
        if len(cuts) - 1 > len(targets):
            groups = Groups(self.positions, np.array(cuts, np.int64))
            return align(groups, len(targets))[0]
        whole = float(self.costs[SINGLE].max()) * len(self.positions)
        low, high = 0.0, max(whole / max(float(targets.min()), whole * 1e-9, 1e-300), 1.0)
        best = self._match(targets * high)
        for _ in range(_HALVINGS + 10):
            middle = (low + high) / 2 if low > 0 or high < 4 else high / 4
            tried = self._match(targets * middle)
            if tried[0][-1] == len(self.positions):
                best, high = tried, middle
            else:
                low = middle
        ends, steps = best
        groups = Groups(self.positions[: ends[-1]], np.array(ends, np.int64))
        return groups.take(np.argsort(steps))

    def _match(self, targets: Float64Array) -> tuple[list[int], list[int]]:
        """Where runs begin, and the number of samples placed; and the step of each run."""
        spare = targets * (1 + ROUNDING)
        left = np.arange(len(targets))
        ends, steps = [0], []
        count = len(self.positions)
        while len(left):
            begin = ends[-1]
            single, each = self.costs[:, begin].tolist()
            most = min(int(self.room[begin]), count - begin - len(left) + 1)
            further = (spare - single) / each if each > 0 else np.where(spare < single, -1.0, most)
            sizes = np.floor(np.minimum(further + 1, most))
            loss = targets - (single + (sizes - 1) * each)
            loss[sizes < 1] = _UNFIT - targets[sizes < 1]
            chosen = int(loss.argmin())
            steps.append(int(left[chosen]))
            ends.append(begin + max(int(sizes[chosen]), 1))
            keep = np.arange(len(left)) != chosen
            left, targets, spare = left[keep], targets[keep], spare[keep]
        return ends, steps

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
    """[steps] what the groups of the last steps should cost, largest first.

    Args:
        costs: [ranks, quantiles] `even_costs` of each.
    """
    levels = (np.arange(costs.shape[1]) + 0.5) / costs.shape[1]
    wanted = (np.arange(steps) + 0.5) / steps
    return np.asarray(np.interp(wanted, levels, costs.mean(axis=0)), np.float64)
