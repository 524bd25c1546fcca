"""The best run of the sorted window for a target of two parts, before samples are exchanged.

As in `padded_runs`, every sample is tried as the longest of a run as large as the target and the
memory limits allow. Here many runs are wanted and not one, as it shows only later which of them can
be brought to the vision cost that is asked for.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evenstep.arrays import Float64Array, Int64Array
from evenstep.plan.policies.even.padded_runs import (
    AGE,
    AGE_BONUS,
    LENGTH,
    OLDEST,
    PATCHES,
    ROUNDING,
    UNDER,
    WISH,
    RunLimits,
)
from evenstep.plan.policies.even.two_part_window import IMAGES, TwoPartWindow

_BLOCKS = 12
"""Parts of the sorted window, of each of which the best run is tried."""
_UNUSUAL = 0.3
"""Loss of a run whose usual vision cost is nothing against the target, or the other way round."""
_NEAR = 16
"""Samples, at least, by each run that tell what vision cost is usual there."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a group should cost."""

    cost: float
    """Of the language model; no group of several samples costs more."""
    vision: float | None
    """Of the vision tower; None is what is usual for samples of like length."""
    mean: float
    """Mean vision cost for each unit of language cost: what misfits are measured by."""
    over: float = 1.0
    """How much more vision cost above the target counts than below it: for how many ranks it is,
    since all others wait."""
    wish: float = -1.0
    """See `PaddedRound`; negative for none."""

    def per_misfit(self, cost: float) -> float:
        """What a group loses for each unit of vision cost that it has too little.

        Args:
            cost: of the group, of the language model.
        """
        return UNDER / (max(self.vision or 0.0, self.mean * cost) or 1.0)


@dataclass(frozen=True, kw_only=True)
class BestRuns:
    """The best run that ends with each sample. Arrays [runs]."""

    begins: Int64Array
    ends: Int64Array
    costs: Float64Array
    """Of the language model."""
    wanted: Float64Array
    """Vision cost that each should have."""
    loss: Float64Array
    """Without that of vision cost that is off; infinite where a run does not fit."""

    @classmethod
    def of(
        cls, window: TwoPartWindow, target: Target, limits: RunLimits, must: int, most: int
    ) -> BestRuns:
        count = len(window)
        first, last = 0, count
        if must >= 0:  # a run with a longer sample holds no more
            first = must
            last = min(count, must + max(limits.max_tokens // int(window.numbers[LENGTH, must]), 1))
        lengths, ages = window.numbers[LENGTH, :last], window.numbers[AGE, :last]
        tokens = _running(lengths)
        aged = _running(np.minimum(ages, OLDEST) ** 4 * lengths)
        vision = _running(window.vision[:last])
        ends = np.arange(first + 1, last + 1)
        longest, (single, each) = lengths[first:], window.costs[:, first:last]
        room = np.minimum(np.minimum(limits.max_tokens // longest, ends), most)
        for row, limit in ((PATCHES, limits.max_patches), (IMAGES, limits.max_images)):
            if limit is not None:
                held = _running(window.numbers[row, :last])
                room = np.minimum(room, ends - np.searchsorted(held, held[ends] - limit))
        spare = target.cost * (1 + ROUNDING) - single
        further = np.full(len(ends), np.inf)
        np.divide(spare, each, out=further, where=each > 0)
        sizes = np.maximum(np.minimum(further + 1, room), 1).astype(np.int64)
        begins = ends - sizes
        real = (tokens[ends] - tokens[begins]).astype(np.float64)
        costs = single + (sizes - 1) * each
        missing = 1 - costs / (target.cost or 1.0)
        flat = each == 0  # there the memory limit says how large a run should be
        missing[flat] = 1 - sizes[flat] / np.maximum(limits.max_tokens // longest[flat], 1)
        loss = UNDER * missing + 1 - real / (sizes * longest)
        loss -= AGE_BONUS * ((aged[ends] - aged[begins]) / real)
        if target.wish >= 0:
            middle = (tokens[ends] + tokens[begins]) / (2 * tokens[last])
            loss += WISH * np.abs(middle - target.wish)
        near = np.maximum(sizes, _NEAR)
        low, high = np.maximum(ends - 2 * near, 0), np.minimum(ends + near, last)
        usual = (vision[high] - vision[low]) / (high - low) * sizes
        wanted = usual
        if target.vision is not None:
            wanted = np.full(len(ends), target.vision)
            larger = np.maximum(np.maximum(usual, wanted), np.finfo(np.float64).tiny)
            loss += _UNUSUAL * np.abs(wanted - usual) / larger
        unfit = (spare < 0) | (room < 1)
        if must >= 0:
            unfit |= begins > must
        loss[unfit] = np.inf
        return cls(begins=begins, ends=ends, costs=costs, wanted=wanted, loss=loss)

    def promising(self) -> list[int]:
        """The best runs of parts of the window, the best first."""
        edges = np.unique(np.linspace(0, len(self.loss), _BLOCKS + 1).astype(np.int64)).tolist()
        best = [a + int(self.loss[a:b].argmin()) for a, b in itertools.pairwise(edges)]
        return sorted((run for run in best if self.loss[run] < np.inf), key=self.loss.item)


def _running(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """[values + 1] sums of the first values, from none to all of them."""
    sums = np.zeros(len(values) + 1, values.dtype)
    values.cumsum(out=sums[1:])
    return sums
