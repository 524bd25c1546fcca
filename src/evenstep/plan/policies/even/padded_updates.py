"""A round of padded groups where ranks wait at the end of an update alone.

The groups of an update count together on each rank: a dear sample meets smaller groups of its own
rank, and what a group misses the next of its update makes up for. So a full group is as large as
memory allows, on the average of all lengths, and each rank chooses what its groups cost; ranks tell
each other how much that is, and of their dear samples. See `update_parts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.plan.groups import Groups
from evenstep.plan.policies.even.padded_end import LastSamples
from evenstep.plan.policies.even.padded_round import (
    LAST,
    STRONG_WISH,
    Column,
    Met,
    PaddedRound,
    bits,
    oldest_share,
    tilt_of,
)
from evenstep.plan.policies.even.padded_runs import take_runs
from evenstep.plan.policies.even.sorted_window import LENGTH, POSITION, SINGLE, SortedWindow
from evenstep.plan.policies.even.update_parts import budgets, divided, placed
from evenstep.plan.policy import Proposal, Window

_MOST_DEAR = 24
"""Dear samples that a rank tells of."""
_FULL = 14
"""Sixteenths of the memory for a group that a full one takes, to leave a choice."""
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class UpdatesRound(PaddedRound):
    """Plans a round of `Even`, whose options it has."""

    def propose(self, window: Window) -> Proposal:
        """What all that the rank holds costs, and its dear samples."""
        samples = SortedWindow.of(window, self.cost)
        held = self._last(samples, max(_FULL * self.target_tokens // 16, 1))
        message = np.zeros(Column.RUNS + _MOST_DEAR, np.int64)
        steps, groups, total = self._steps(samples, window), held.needed(), held.total()
        message[: Column.PROPOSED] = [
            steps,
            len(window),
            int(window.exhausted),
            groups,
            np.float64(total).view(np.int64),
        ]
        costs = samples.costs[SINGLE, self._going(samples, window, total / groups)]
        message[Column.RUNS : Column.RUNS + len(costs)] = costs.view(np.int64)
        return Proposal(message, Groups.empty(), window)

    def _going(self, samples: SortedWindow, window: Window, full: float) -> Int64Array:
        """Places of the samples that cost more than a full group and may go, the dearest first."""
        costs = samples.costs[SINGLE]
        dear = np.flatnonzero(costs > full * (1 + _ROUNDING))
        if not window.exhausted:
            dear = oldest_share(dear, samples, window)
        return dear[np.argsort(-costs[dear], kind="stable")][:_MOST_DEAR]

    def _last(self, samples: SortedWindow, max_tokens: int) -> LastSamples:
        return LastSamples.of(samples, self._limits(max_tokens), row=LENGTH)

    def _groups(self, met: Met) -> Groups:
        samples, rows, window, steps = met.samples, met.rows, met.window, met.steps
        if steps >= 2 * window.accumulate:
            steps -= (window.step + steps) % window.accumulate
        sizes, order = divided(steps, window, met.draw)
        full, _ = _held(rows)
        wanted = budgets(bits(rows[:, Column.RUNS :]), sizes, full)
        dear = self._going(samples, window, full)
        into, room = placed(samples.costs[SINGLE, dear], sizes, wanted, full)
        dear, into = dear[into >= 0], into[into >= 0]
        others = np.delete(np.arange(len(samples)), dear)
        taken = np.bincount(into, minlength=len(sizes))
        parts = np.repeat(np.arange(len(sizes)), sizes)
        left = np.cumsum(sizes)[parts] - np.arange(steps)  # in its part, with the step itself
        targets = (room / np.maximum(sizes - taken, 1))[parts]
        wishes = np.full(steps, -1.0)
        if self.spread:
            wishes = self._wishes(met, order)
        filled = np.flatnonzero(left <= (sizes - taken)[parts])
        filled = filled[np.lexsort((-targets[filled], -left[filled]))]
        runs = take_runs(
            samples.take(others),
            targets[filled],
            self._limits(self.max_tokens, due=self.max_wait),
            oldest=False,
            wishes=wishes[filled],
            pull=STRONG_WISH,
            tilt=tilt_of(window),
            parts=parts[filled],
        )
        groups = Groups(
            samples.numbers[POSITION, np.append(dear, others[runs.members])],
            np.append(np.arange(len(dear)), len(dear) + runs.offsets),
        )
        by_part = np.argsort(np.append(into, parts[filled]), kind="stable")
        return groups.take(by_part[order])

    def _end(self, met: Met) -> Groups | None:
        rows, window = met.rows, met.window
        full, total = _held(rows)
        least = max(int(rows[:, Column.GROUPS].max()), math.ceil(total / full * (1 - _ROUNDING)))
        least += -(window.step + least) % window.accumulate
        steps = min(least, int(rows[:, Column.SAMPLES].min()))
        if steps > LAST:
            return None
        sizes, order = divided(steps, window, met.draw)
        wanted = budgets(bits(rows[:, Column.RUNS :]), sizes, total / steps, total)
        parts = np.repeat(np.arange(len(sizes)), sizes)
        return self._filled(met, order, (wanted / sizes)[parts], parts)


def _held(rows: Int64Array) -> tuple[float, float]:
    """The cost of a full group, and of the most that a rank holds: the same bits on all ranks, on
    whichever machine."""
    totals = bits(rows[:, Column.TOTAL])
    return math.fsum(totals.tolist()) / int(rows[:, Column.GROUPS].sum()), float(totals.max())
