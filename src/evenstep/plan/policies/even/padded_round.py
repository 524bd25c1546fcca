"""A round of padded groups: what a rank proposes, and the steps that all ranks settle on."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost
from evenstep.plan.groups.groups import Groups
from evenstep.plan.groups.spread import mean_lengths
from evenstep.plan.policies.even.drift import drift
from evenstep.plan.policies.even.last_runs import fill_last, levels, targets_of
from evenstep.plan.policies.even.padded_end import LastSamples
from evenstep.plan.policies.even.padded_runs import (
    AGE,
    LENGTH,
    POSITION,
    WISH,
    RunLimits,
    SortedWindow,
    take_runs,
)
from evenstep.plan.policy import Plan, Proposal, Window
from evenstep.plan.rng import RandomStream, generator

_HEAD_START = 240
"""Sixteenths of a round by which a sample is proposed earlier that is a group by itself, on
`_MANY` ranks."""
_MANY = 8
"""Ranks from which on a step draws a long sample out on few of them alone."""
_CORRECTION = 480
"""Sixteenths of a round by which the longest samples are proposed earlier where many are held
back, or later where few are."""
_CORRECTED = 0.2
"""The share of it for each standard error of `drift`."""
_TILT = 0.04
"""Loss forgiven to a run of the longest samples for each standard error."""
_MOST_TILT = 0.2
_STRONG_WISH = 0.4
"""In place of `WISH` where an update has several steps: smaller groups fit their targets less well,
so they would be taken from anywhere."""
LAST_WISH = 1.0
"""In place of `WISH` for all that is left."""
_SHARE = 8
"""A round takes one of so many groups of a window; the others are there to choose from."""
LAST = 160
"""Steps that are planned in one round, at most, when nothing is to come any more."""
MOST_RUNS = 16
"""Runs that a rank proposes at most."""
QUANTILES = 28
"""Of the costs of all that is left."""
_URGENCY = (1 << 16) - 1
"""The bits of a proposed run that hold its urgency."""


class Column(enum.IntEnum):
    """Columns of a message."""

    STEPS = 0
    """Steps that the rank would make; 0 in the row of a rank that has nothing left."""
    SAMPLES = 1
    """In the window."""
    EXHAUSTED = 2
    """1 if the rank's source has ended, else 0."""
    GROUPS = 3
    """Groups that all that is left makes, where the source has ended."""
    TOTAL = 4
    """What those groups cost: the bits of a float64."""
    PROPOSED = 5
    """How many runs are proposed."""
    RUNS = 6
    """[16] cost and urgency of each run, the most urgent first: see `pack_runs`."""
    LAST_COSTS = RUNS + MOST_RUNS
    """[14] two float32 each: costs that the last steps should have, see `last_runs.levels`."""


MESSAGE = Column.LAST_COSTS + QUANTILES // 2
"""int64 numbers in a message."""


@dataclass(frozen=True, kw_only=True)
class PaddedRound:
    """Plans a round of `Even`, whose options it has."""

    cost: Cost
    max_tokens: int
    target_tokens: int
    max_patches: int | None
    max_wait: int
    spread: bool

    def propose(self, window: Window) -> Proposal:
        """The runs with the most urgent samples of this rank."""
        samples = SortedWindow.of(window, self.cost)
        steps = self._steps(window)
        limits = RunLimits(max_tokens=self.target_tokens, max_patches=self.max_patches, due=0)
        # A run is proposed for its tokens; its cost follows.
        wanted = np.full(min(steps, MOST_RUNS), float(self.target_tokens))
        urgency = self._urgency(samples, window)
        urgent = samples.in_tokens(urgency)
        taken, ends = take_runs(urgent, wanted, limits, oldest=True)
        single, each = samples.costs[:, taken[ends[1:] - 1]]
        groups = Groups(samples.numbers[POSITION, taken], ends)
        highest = np.maximum.reduceat(urgency[taken], ends[:-1])
        message = np.zeros(MESSAGE, np.int64)
        message[: Column.RUNS] = [steps, len(window), int(window.exhausted), 0, 0, len(groups)]
        runs = pack_runs(single + (groups.sizes - 1) * each, highest)
        message[Column.RUNS : Column.RUNS + len(runs)] = runs
        if window.exhausted:
            last = LastSamples.of(samples, self.max_tokens, self.max_patches)
            message[Column.GROUPS] = last.needed()
            wanted_size = LastSamples.of(samples, self.target_tokens, self.max_patches)
            costs = levels(wanted_size, self.target_tokens, window.ranks, QUANTILES)
            message[Column.LAST_COSTS :] = costs.astype(np.float32).view(np.int64)
            message[Column.TOTAL] = np.float64(wanted_size.total()).view(np.int64)
        return Proposal(message, groups, window)

    def _urgency(self, samples: SortedWindow, window: Window) -> Int64Array:
        """[samples] rounds that each has waited, in sixteenths, and the more besides the fewer of
        its length make a group. What few long samples cost together is what it is, and seldom fits
        a target; short ones fit any. Proposed no earlier than those, long ones would pile up, and
        be trained on last. How much earlier depends on what has piled up: see `drift`."""
        lengths = samples.numbers[LENGTH]
        together = self.target_tokens // lengths
        others = min(window.ranks, _MANY) - 1
        # One that is longer than a group should be is a step by itself, and better meets others.
        head_start = np.where(together > 0, _HEAD_START // np.maximum(together, 1), 0)
        after = np.cumsum(lengths)
        place = (after - lengths / 2) / after[-1]
        correction = _CORRECTION * min(max(_CORRECTED * drift(window), -1.0), 1.0)
        ahead = head_start * (others / (_MANY - 1)) + correction * place
        urgency: Int64Array = 16 * samples.numbers[AGE] + np.maximum(ahead, 0).astype(np.int64)
        return urgency

    def _steps(self, window: Window) -> int:
        """Steps that this rank would make of a window: a share of what it holds, and whole updates
        if it holds one."""
        held = float(np.minimum(window.lengths, self.target_tokens).sum()) / self.target_tokens
        if window.patches is not None and self.max_patches is not None:
            counted = np.minimum(window.patches, self.max_patches)  # one above it stays alone
            held = max(held, float(counted.sum()) / self.max_patches)
        groups = min(math.ceil(held), len(window))
        steps = -(-groups // _SHARE)
        whole = -(-steps // window.accumulate) * window.accumulate
        return whole if whole <= groups else steps

    def settle(self, window: Window, messages: Int64Array, rank: int) -> Plan:
        """This rank's groups, given all ranks' messages."""
        samples = SortedWindow.of(window, self.cost)
        active = np.flatnonzero(messages[:, Column.STEPS] > 0)
        rows = messages[active]
        place = int(np.searchsorted(active, rank))
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_ORDER)
        if len(messages) == 1 and window.accumulate > 1:
            tokens = (self.target_tokens, self.max_tokens)
            wanted, last = (LastSamples.of(samples, most, self.max_patches) for most in tokens)
            return self._alone(window, last, wanted.needed(), draw)
        if (last_targets := self._last_targets(rows)) is not None:
            order = updates_order(len(last_targets), window, draw)
            places = self._wishes(window, order, place, len(active))
            last = LastSamples.of(samples, self.max_tokens, self.max_patches)
            pull = LAST_WISH if self.spread else 0.0
            return Plan(fill_last(last, last_targets, places, pull).take(order))
        targets = self._targets(rows, (active + window.round) % len(messages))
        order = updates_order(len(targets), window, draw)
        limits = RunLimits(
            max_tokens=self.max_tokens, max_patches=self.max_patches, due=self.max_wait
        )
        wishes = self._wishes(window, order, place, len(active)) if self.spread else None
        tilt = _TILT * drift(window)
        tilt = min(max(tilt, -_MOST_TILT), _MOST_TILT)
        pull = WISH if window.accumulate == 1 else _STRONG_WISH
        taken, ends = take_runs(
            samples, targets, limits, oldest=False, wishes=wishes, pull=pull, tilt=tilt
        )
        return Plan(Groups(samples.numbers[POSITION, taken], ends).take(order))

    def _alone(
        self, window: Window, last: LastSamples, wanted: int, draw: np.random.Generator
    ) -> Plan:
        """The round of a single rank whose updates have several steps: all that the window holds.
        No other rank's costs have to be met, so the groups of each update are evenly spaced in
        length, and nothing is held back. So are those that end the update which the round before
        began, and those that begin one for the next round to end.

        Args:
            last: the samples of the window.
            wanted: groups of `target_tokens` that they make.
        """
        groups = last.cut(min(wanted, len(window)))
        places = np.argsort(-mean_lengths(groups, window.lengths), kind="stable")
        k = window.accumulate
        ending = min(-window.step % k, len(places))
        beginning = (len(places) - ending) % k
        apart = _evenly(len(places), ending + beginning)
        first = _evenly(len(apart), ending)
        whole = np.delete(places, apart).reshape(k, -1).T
        order = [
            places[apart[first]],
            *whole[draw.permutation(len(whole))],
            places[np.delete(apart, first)],
        ]
        return Plan(groups.take(np.concatenate(order)))

    def _targets(self, rows: Int64Array, turns: Int64Array) -> Float64Array:
        """[steps] costs of the most urgent runs that ranks propose, largest first.

        Args:
            rows: [ranks, k] messages of the ranks that have samples.
            turns: [ranks] their order where runs are equally urgent.
        """
        steps = int(min(rows[:, Column.STEPS].min(), rows[:, Column.SAMPLES].min()))
        costs, urgency = unpack_runs(rows[:, Column.RUNS : Column.LAST_COSTS])
        number = np.broadcast_to(np.arange(MOST_RUNS), costs.shape)
        turn = np.broadcast_to(turns[:, None], costs.shape)
        given = number < rows[:, Column.PROPOSED, None]
        order = np.lexsort((turn[given], number[given], -urgency[given]))
        first = order[np.arange(steps) % len(order)]
        targets: Float64Array = np.sort(costs[given][first])[::-1]
        return targets

    def _last_targets(self, rows: Int64Array) -> Float64Array | None:
        """[steps] costs of the steps that hold all that is left; None if more is to come, or it is
        too much for one round.

        Args:
            rows: [ranks, k] messages of the ranks that have samples.
        """
        if not rows[:, Column.EXHAUSTED].all():
            return None
        bits = np.ascontiguousarray(rows[:, Column.LAST_COSTS : MESSAGE])
        totals = np.ascontiguousarray(rows[:, Column.TOTAL]).view(np.float64)
        targets = targets_of(
            bits.view(np.float32).astype(np.float64),
            totals,
            least=int(rows[:, Column.GROUPS].max()),
            most=int(rows[:, Column.SAMPLES].min()),
        )
        return targets if len(targets) <= LAST else None

    def _wishes(self, window: Window, order: Int64Array, rank: int, ranks: int) -> Float64Array:
        """[steps] where in its sorted window the rank should take the run of each step from, as a
        share of its tokens.

        The ranks of a step, and the steps of an update, look at places that are evenly spaced, from
        one drawn for each update. With 2 ranks, updates of 2 steps and a draw of 0.1 the places are
        0.1 and 0.35 on rank 0, and 0.6 and 0.85 on rank 1.

        Args:
            order: [steps] the step that is emitted at each place.
        """
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_SPREAD)
        first = window.step % window.accumulate  # the round before may have begun an update
        update, number = np.divmod(first + np.arange(len(order)), window.accumulate)
        updates = int(update[-1]) + 1
        drawn = (draw.permutation(updates) + draw.random(updates)) / updates
        at = drawn[update] + (rank + number / window.accumulate) / ranks
        wishes = np.empty(len(order))
        wishes[order] = at % 1.0
        return wishes


def updates_order(steps: int, window: Window, draw: np.random.Generator) -> Int64Array:
    """[steps] the step that is emitted at each place, drawn so that the steps of each update are
    evenly spaced among all, which are sorted by cost.

    Args:
        draw: in the same state on all ranks.
    """
    number = (window.step + np.arange(steps)) % window.accumulate
    order = np.empty(steps, np.int64)
    begin = 0
    for one in range(window.accumulate):
        places = np.flatnonzero(number == one)
        order[places] = begin + draw.permutation(len(places))
        begin += len(places)
    return order


def _evenly(count: int, chosen: int) -> Int64Array:
    """[chosen] evenly spaced places of `count`."""
    places: Int64Array = (2 * np.arange(chosen) + 1) * count // max(2 * chosen, 1)
    return places


def pack_runs(costs: Float64Array, urgency: Int64Array) -> Int64Array:
    """[runs] one int64 for the cost and the urgency of each run.

    The urgency takes the place of the lowest bits of the cost. That is rounded up, by 2 ** -36 of
    it at most, so a run never costs more than what all ranks read.
    """
    bits = np.ascontiguousarray(costs, np.float64).view(np.int64)
    packed: Int64Array = (bits + _URGENCY & ~_URGENCY) | np.minimum(urgency, _URGENCY)
    return packed


def unpack_runs(packed: Int64Array) -> tuple[Float64Array, Int64Array]:
    """Costs and urgency of packed runs."""
    return np.ascontiguousarray(packed & ~_URGENCY).view(np.float64), packed & _URGENCY
