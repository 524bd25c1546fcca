"""A round of packed groups: what a rank proposes, and the steps that all ranks settle on.

Any samples may lie in a packed group, so all groups are full and take the same time. A *dear*
sample takes longer than any such group. Steps for dear samples come first: these wait until all
ranks have one, but for one rank in `_UNMATCHED`, and meet in the order of their times. A rank that
has none fills its group to the same time, as far as memory allows.

Where samples take much longer than their tokens, groups that are full in memory take longer than
those of short samples. Then the time of a full group is larger, and fewer samples are dear.

Where ranks wait at the end of an update alone, all its groups count together: a dear sample meets
smaller groups of its own rank, and only one that takes nearly as long as an update has to wait for
others.

Ranks tell each other integers, and the bits of the vision tower's costs.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, replace

import numpy as np

from evenstep.arrays import Int64Array
from evenstep.cost import Cost, MemoryLimit, VisionLanguageCost
from evenstep.plan.groups import Groups
from evenstep.plan.policies.even.drain_packed import first_fit, limited, next_fit, share_out
from evenstep.plan.policies.even.fill_packed import fill
from evenstep.plan.policies.even.fill_two_parts import (
    VisionParts,
    vision_quantiles,
    vision_targets,
)
from evenstep.plan.policies.even.packed_anchors import PackedParts
from evenstep.plan.policies.even.padded_round import updates_order
from evenstep.plan.policies.even.sorted_window import vision_costs
from evenstep.plan.policies.even.timed import counts
from evenstep.plan.policies.even.update_parts import LEAST, divided
from evenstep.plan.policy import Plan, Proposal, Window
from evenstep.plan.rng import RandomStream, generator

_MOST_DEAR = 32
"""Long samples that a rank tells of."""
_UNMATCHED = 4
"""One in so many ranks may lack a dear sample in a step for these."""
_FULL, _FULL_OF_SEVERAL = 14, 13
"""Time of a full group, in sixteenths of what its tokens take in samples of all lengths; and that
of several in an update, among which dear samples may be more, since each update has few."""


def full_group(times: Int64Array, lengths: Int64Array, tokens: int, accumulate: int) -> int:
    """What a full group counts, of samples that take `times`; one that takes longer is dear."""
    share = _FULL if accumulate == 1 else _FULL_OF_SEVERAL
    return max(tokens, share * tokens * int(times.sum()) // (16 * int(lengths.sum())))


class _Column(enum.IntEnum):
    """Columns of a message."""

    STEPS = 0
    GROUPS = 1
    """That all of the window makes; 0 in the row of a rank that has nothing left."""
    SAMPLES = 2
    EXHAUSTED = 3
    """1 if the rank's source has ended, else 0."""
    FULL = 4
    """What a group should count."""
    OVERDUE = 5
    """Samples that have to go and may be dear."""
    LONG = 6
    """[32] what the longest samples count that count more than a group should; then 0."""


_VISION = _Column.LONG + _MOST_DEAR
"""Columns behind those: [16] bits of `vision_quantiles`, where the cost has two parts."""


@dataclass(frozen=True, kw_only=True)
class PackedRound:
    """Plans a round of `Even`, whose options it has."""

    cost: Cost
    limit: MemoryLimit
    target_tokens: int
    max_wait: int
    sync: str
    """See `Even.sync`."""

    @property
    def _wanted(self) -> MemoryLimit:
        """What groups should hold, but for one of a single sample that is longer."""
        return replace(self.limit, max_tokens=self.target_tokens)

    def propose(self, window: Window) -> Proposal:
        times = counts(self.cost, window.lengths, packed=True)
        cut = first_fit if window.exhausted else next_fit
        groups = cut(times, window, self._wanted)
        most = self.target_tokens
        full = full_group(times, window.lengths, most, window.accumulate)
        held = int(np.minimum(times, full).sum())
        made = max(held / full, self._full_by_images(window))
        overdue = int(np.count_nonzero((times > most) & (window.ages >= self.max_wait)))
        message = np.zeros(_VISION, np.int64)
        message[: _Column.LONG] = [
            max(1, int(made / 2)),
            len(groups),
            len(window),
            int(window.exhausted),
            # Where patches are the tighter limit, no group should take more than its share of time.
            min(math.ceil(held / made), full),
            overdue,
        ]
        long = np.sort(times[times > most])[::-1][:_MOST_DEAR]
        message[_Column.LONG : _Column.LONG + len(long)] = long
        if isinstance(self.cost, VisionLanguageCost):
            vision = vision_costs(window, self.cost)
            quantiles = vision_quantiles(vision, min(math.ceil(made), len(window)))
            message = np.append(message, quantiles)
        return Proposal(message, groups, window)

    def _full_by_images(self, window: Window) -> float:
        """How many groups the images of a window fill."""
        rows, limits = limited(window, self.limit)
        # One above is alone.
        held = [float(np.minimum(row, most).sum()) / most for row, most in zip(rows, limits)]
        return max(held[1:], default=0.0)

    def settle(self, proposal: Proposal, messages: Int64Array, rank: int) -> Plan:
        """This rank's groups, given all ranks' messages."""
        window = proposal.window
        draw = generator(window.seed, window.epoch, window.round, RandomStream.EVEN_ORDER)
        times = counts(self.cost, window.lengths, packed=True)
        active = messages[messages[:, _Column.GROUPS] > 0]
        samples = int(active[:, _Column.SAMPLES].min())
        if active[:, _Column.EXHAUSTED].all():
            steps = min(int(active[:, _Column.GROUPS].max()), samples)
            towers = vision_costs(window, self.cost)
            left = share_out(times, window, proposal.groups, steps, self._wanted, vision=towers)
            return Plan(left.take(updates_order(steps, window, draw)))
        steps = min(int(active[:, _Column.STEPS].min()), samples)
        if steps >= 2 * window.accumulate:
            steps -= (window.step + steps) % window.accumulate
        if self.sync == "update" and window.accumulate > 1:
            sizes, order = divided(steps, window, draw)
        else:
            sizes, order = np.ones(steps, np.int64), updates_order(steps, window, draw)
        parts = self._parts(active, sizes)
        vision = None
        if isinstance(self.cost, VisionLanguageCost):
            each = vision_targets(active[:, _VISION:], int(sizes.sum()))
            vision = VisionParts(vision=vision_costs(window, self.cost), wanted=each)
        filled = fill(times, window, parts, self.limit, max_wait=self.max_wait, vision=vision)
        return Plan(Groups.of(filled).take(order))

    def _parts(self, active: Int64Array, sizes: Int64Array) -> PackedParts:
        """What the groups of each part should count.

        Args:
            active: [ranks, k] messages of the ranks that have samples.
        """
        usual = int(active[:, _Column.FULL].sum()) // len(active)
        others = int(sizes[0]) - 1
        least = usual // LEAST
        above = max(usual * (others + 1) - others * least, self.target_tokens)
        long = active[:, _Column.LONG : _VISION]
        dear = np.where(long > above, long, 0)
        held = np.sort(np.count_nonzero(dear, axis=1))
        wanted = max(int(held[len(held) // _UNMATCHED]), int(active[:, _Column.OVERDUE].max()))
        tops = dear.max(axis=0)[: min(wanted, np.count_nonzero(sizes == sizes[0]))]
        tops = tops[tops > 0]
        targets = usual * sizes
        targets[: len(tops)] = tops + others * least
        return PackedParts(sizes=sizes, targets=targets, above=above, dear=len(tops), least=least)
