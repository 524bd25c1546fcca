"""A round of padded groups: what a rank proposes, and the steps that all ranks settle on."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost
from evenstep.plan.groups import Groups, mean_lengths
from evenstep.plan.policies.even.last_runs import fill_last, levels, targets_of
from evenstep.plan.policies.even.padded_end import LastSamples
from evenstep.plan.policies.even.padded_runs import WISH, take_runs
from evenstep.plan.policies.even.sorted_window import (
    AGE,
    POSITION,
    TIME,
    RunLimits,
    SortedWindow,
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
STRONG_WISH = 0.4
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
_DEAR = 1 << 15
"""The urgency of a sample that is longer than a group should be and should go now, at least."""


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


@dataclass(frozen=True)
class Met:
    """What a rank knows once the messages of all have met."""

    samples: SortedWindow
    window: Window
    rows: Int64Array
    """[ranks, k] messages of the ranks that have samples."""
    turns: Int64Array
    """[ranks] their order where runs are equally urgent."""
    place: int
    """Of this rank among them."""
    draw: np.random.Generator
    """In the same state on all ranks."""

    @property
    def steps(self) -> int:
        """Steps of the round."""
        return int(min(self.rows[:, Column.STEPS].min(), self.rows[:, Column.SAMPLES].min()))


@dataclass(frozen=True, kw_only=True)
class PaddedRound:
    """Plans a round of `Even`, whose options it has."""

    cost: Cost
    max_tokens: int
    target_tokens: int
    max_patches: int | None
    max_images: int | None
    max_wait: int
    spread: bool

    def propose(self, window: Window) -> Proposal:
        """The runs with the most urgent samples of this rank."""
        samples = SortedWindow.of(window, self.cost)
        steps = self._steps(samples, window)
        urgency = np.minimum(self._urgency(samples, window), _DEAR - 1)
        urgency[self._dear(samples, window)] += _DEAR
        # A run is proposed for its time; its cost follows.
        runs = self._urgent_runs(samples.timed(urgency), min(steps, MOST_RUNS))
        single, each = samples.costs[:, runs.members[runs.offsets[1:] - 1]]
        costs = single + (runs.sizes - 1) * each
        highest = np.maximum.reduceat(urgency[runs.members], runs.offsets[:-1])
        message = np.zeros(MESSAGE, np.int64)
        message[: Column.RUNS] = [steps, len(window), int(window.exhausted), 0, 0, len(runs)]
        message[Column.RUNS : Column.RUNS + len(runs)] = pack_runs(costs, highest)
        if window.exhausted:
            message[Column.GROUPS] = self._last(samples, self.max_tokens).needed()
            self._write_end(message, samples, window.ranks)
        message = np.concatenate([message, self._more_columns(samples, runs)])
        return Proposal(
            message, Groups(samples.numbers[POSITION, runs.members], runs.offsets), window
        )

    def _urgent_runs(self, samples: SortedWindow, count: int) -> Groups:
        """Runs of `target_tokens`, each with the most urgent sample that is left."""
        wanted = np.full(count, float(self.target_tokens))
        return take_runs(samples, wanted, self._limits(self.target_tokens, due=0), oldest=True)

    def _write_end(self, message: Int64Array, samples: SortedWindow, ranks: int) -> None:
        """Writes what the last steps should cost to the message."""
        wanted = self._last(samples, self.target_tokens)
        costs = levels(wanted, self.target_tokens, ranks, QUANTILES)
        message[Column.LAST_COSTS :] = costs.astype(np.float32).view(np.int64)
        message[Column.TOTAL] = np.float64(wanted.total()).view(np.int64)

    def _more_columns(self, samples: SortedWindow, runs: Groups) -> Int64Array:
        """What a subclass appends to the message."""
        return np.empty(0, np.int64)

    def _dear(self, samples: SortedWindow, window: Window) -> Int64Array:
        """Places of the oldest of the samples that are longer than a group should be: as large a
        share of them as a round takes of the window, in the long run."""
        dear = np.flatnonzero(samples.numbers[TIME] > self.target_tokens)
        return oldest_share(dear, samples, window)

    def _urgency(self, samples: SortedWindow, window: Window) -> Int64Array:
        """[samples] the rounds that each has waited, in sixteenths. A sample is more urgent the
        fewer of its length make a group: a few long samples have few possible costs, and seldom fit
        a target, while short ones fit any. Without this, long samples would pile up and be trained
        on last. How much it adds depends on what has piled up: see `drift`."""
        times = samples.numbers[TIME]
        together = self.target_tokens // times
        others = min(window.ranks, _MANY) - 1
        head_start = _HEAD_START // np.maximum(together, 1)
        after = np.cumsum(times)
        place = (after - times / 2) / after[-1]
        correction = _CORRECTION * min(max(_CORRECTED * drift(window), -1.0), 1.0)
        ahead = head_start * (others / (_MANY - 1)) + correction * place
        ahead[together == 0] = 0  # see `_dear`
        urgency: Int64Array = 16 * samples.numbers[AGE] + np.maximum(ahead, 0).astype(np.int64)
        return urgency

    def _steps(self, samples: SortedWindow, window: Window) -> int:
        """Steps that this rank would make of a window: a share of what it holds, and whole updates
        if it holds one."""
        held = (
            float(np.minimum(samples.numbers[TIME], self.target_tokens).sum()) / self.target_tokens
        )
        if window.patches is not None and self.max_patches is not None:
            counted = np.minimum(window.patches, self.max_patches)  # one above it stays alone
            held = max(held, float(counted.sum()) / self.max_patches)
        groups = min(math.ceil(held), len(window))
        steps = -(-groups // _SHARE)
        whole = -(-steps // window.accumulate) * window.accumulate
        return whole if whole <= groups else steps

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        """This rank's groups, given all ranks' messages."""
        window, samples = proposal.window, SortedWindow.of(proposal.window, self.cost)
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_ORDER)
        if len(messages) == 1 and window.accumulate > 1:
            return Plan(self._alone(samples, window, draw))
        active = np.flatnonzero(messages[:, Column.STEPS] > 0)
        turns = (active + window.round) % len(messages)
        place = int(np.searchsorted(active, rank))
        met = Met(samples, window, messages[active], turns, place, draw)
        ended = self._end(met) if met.rows[:, Column.EXHAUSTED].all() else None
        return Plan(self._groups(met) if ended is None else ended)

    def _groups(self, met: Met) -> Groups:
        """This rank's groups of a round, in the order in which they are emitted."""
        window, samples = met.window, met.samples
        costs, _ = unpack_runs(met.rows[:, Column.RUNS : Column.LAST_COSTS])
        row, number = by_urgency(met)
        first = np.arange(met.steps) % len(row)
        order = updates_order(met.steps, window, met.draw)
        runs = take_runs(
            samples,
            np.sort(costs[row[first], number[first]])[::-1],
            self._limits(self.max_tokens, due=self.max_wait),
            oldest=False,
            wishes=self._wishes(met, order) if self.spread else None,
            pull=WISH if window.accumulate == 1 else STRONG_WISH,
            tilt=tilt_of(window),
        )
        return Groups(samples.numbers[POSITION, runs.members], runs.offsets).take(order)

    def _end(self, met: Met) -> Groups | None:
        """All that is left, in the order in which it is emitted; None if it is too much for one
        round."""
        rows = met.rows
        targets = targets_of(
            last_costs(rows),
            bits(rows[:, Column.TOTAL]),
            least=int(rows[:, Column.GROUPS].max()),
            most=int(rows[:, Column.SAMPLES].min()),
        )
        if len(targets) > LAST:
            return None
        order = updates_order(len(targets), met.window, met.draw)
        return self._filled(met, order, targets)

    def _filled(
        self, met: Met, order: Int64Array, targets: Float64Array, parts: Int64Array | None = None
    ) -> Groups:
        """All that is left, in groups of these costs: see `fill_last`."""
        pull = LAST_WISH if self.spread else 0.0
        last = self._last(met.samples, self.max_tokens)
        return fill_last(last, targets, self._wishes(met, order), pull, parts).take(order)

    def _limits(self, max_tokens: int, due: int = 0) -> RunLimits:
        return RunLimits(
            max_tokens=max_tokens,
            max_patches=self.max_patches,
            max_images=self.max_images,
            due=due,
        )

    def _last(self, samples: SortedWindow, max_tokens: int) -> LastSamples:
        return LastSamples.of(samples, self._limits(max_tokens))

    def _alone(self, samples: SortedWindow, window: Window, draw: np.random.Generator) -> Groups:
        """The round of a single rank whose updates have several steps: all that the window holds.

        No other rank's costs have to be met. So the groups of each update are evenly spaced in
        length, and nothing is held back. The groups that end the update which the round before
        began are evenly spaced too, as are those that begin one for the next round to end."""
        wanted = self._last(samples, self.target_tokens).needed()
        groups = self._last(samples, self.max_tokens).cut(min(wanted, len(window)))
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
        return groups.take(np.concatenate(order))

    def _wishes(self, met: Met, order: Int64Array) -> Float64Array:
        """[steps] where in its sorted window the rank should take the run of each step from, as a
        share of its tokens.

        The ranks of a step, and the steps of an update, look at places that are evenly spaced, from
        one drawn for each update. With 2 ranks, updates of 2 steps and a draw of 0.1 the places are
        0.1 and 0.35 on rank 0, and 0.6 and 0.85 on rank 1.

        Args:
            order: [steps] the step that is emitted at each place.
        """
        window = met.window
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_SPREAD)
        first = window.step % window.accumulate  # the round before may have started an update
        update, number = np.divmod(first + np.arange(len(order)), window.accumulate)
        updates = int(update[-1]) + 1
        drawn = (draw.permutation(updates) + draw.random(updates)) / updates
        at = drawn[update] + (met.place + number / window.accumulate) / len(met.rows)
        wishes = np.empty(len(order))
        wishes[order] = at % 1.0
        return wishes


def bits(numbers: Int64Array) -> Float64Array:
    """The floats whose bits numbers of a message are."""
    return np.ascontiguousarray(numbers).view(np.float64)


def last_costs(rows: Int64Array) -> Float64Array:
    """[ranks, quantiles] costs that the last steps should have."""
    found = np.ascontiguousarray(rows[:, Column.LAST_COSTS : MESSAGE]).view(np.float32)
    return found.astype(np.float64)


def by_urgency(met: Met) -> tuple[Int64Array, Int64Array]:
    """The row and the number of each proposed run, the most urgent first.

    Of those for a sample that is longer than a group should be, only one of as many as there are
    ranks is urgent, in order of cost: the other ranks meet it with theirs.
    """
    rows = met.rows
    row, number = np.nonzero(np.arange(MOST_RUNS) < rows[:, Column.PROPOSED, None])
    costs, urgency = unpack_runs(rows[row, Column.RUNS + number])
    dear = np.flatnonzero(urgency >= _DEAR)
    dear = dear[np.argsort(-costs[dear], kind="stable")]
    urgency[dear[np.arange(len(dear)) % len(rows) > 0]] = 0
    order = np.lexsort((met.turns[row], number, -urgency))
    return row[order], number[order]


def updates_order(steps: int, window: Window, draw: np.random.Generator) -> Int64Array:
    """[steps] the step that is emitted at each place, of steps sorted by cost, costliest first:
    steps 0 to 8 make the updates 0 5 6, 1 4 7 and 2 3 8, in an order that is drawn.

    Args:
        draw: in the same state on all ranks.
    """
    first = window.step % window.accumulate  # the round before may have begun an update
    update, number = np.divmod(first + np.arange(steps), window.accumulate)
    drawn = draw.permutation(int(update[-1]) + 1)[update]
    order = np.empty(steps, np.int64)
    order[np.lexsort((np.where(number % 2, -drawn, drawn), number))] = np.arange(steps)
    return order


def oldest_share(places: Int64Array, samples: SortedWindow, window: Window) -> Int64Array:
    """The oldest of some places: as many of them as a round takes of a window, in the long run."""
    by_age = places[np.argsort(-samples.numbers[AGE, places], kind="stable")]
    return by_age[: (len(places) + window.round % _SHARE) // _SHARE]


def tilt_of(window: Window) -> float:
    """Loss forgiven to a run of the longest samples: see `take_runs`."""
    return min(max(_TILT * drift(window), -_MOST_TILT), _MOST_TILT)


def drift(window: Window) -> float:
    """Whether the samples that a window holds back are longer than those that came, or shorter.

    What is held back is trained on last. If long samples fitted targets less often than short ones,
    the updates of an epoch would grow longer toward its end.

    Returns:
        Mean length of the samples of a window minus that of all that the rank's windows have held,
        each token counted, in standard errors of the former: positive where long samples are held
        back. 0 where nothing is known of the others.
    """
    tokens, squares = window.seen_lengths
    lengths = window.lengths.astype(float)
    held, second = float(lengths.sum()), float((lengths**2).sum())
    mean = second / held
    variance = float((lengths**3).sum()) / held - mean * mean
    error = math.sqrt(max(variance, 0.0) * second) / held
    if not tokens or error < 1e-9 * mean:
        return 0.0
    return (mean - squares / tokens) / error


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
