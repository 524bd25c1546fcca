"""Padded groups that cost what is asked for: how `Even` fills its steps.

A padded group is a run of the samples sorted by length, so its cost is that of its longest sample
times their number. Where samples are short against the target, some run close by costs almost
exactly what is asked for; where they are long, the target decides which of them fits. So the
longest samples choose their step first, and shorter ones take what is left.

Costs that do not grow with the number of samples, because every group costs the same or as much as
its longest sample, make no difference to that: the memory limit decides how many go together.

Invariant: every target gets one group, of at least one sample. No group exceeds the memory limit,
except a single sample that alone does; none costs more than its target, except one whose longest
sample alone does, and that costs no more than this sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from evenstep.arrays import Float64Array, Int64Array
from evenstep.cost import Cost, GroupShapes
from evenstep.plan.groups.groups import Groups
from evenstep.plan.policy import Window

_REACH = 24
"""Samples by which a run may begin before or after the one that it was meant for."""
_UNFIT = 10.0
"""Added to the score of a run that does not fit: more than any score of one that does."""
_FLAT = 1e-12
"""Share of a sample's cost below which what the next one adds is rounding."""
_ROUNDING = 1e-9
"""Share of a target that is forgiven, where it is the cost of just such a group."""


def oldest_of(groups: Groups) -> Int64Array:
    """[groups] window position of the oldest sample of each group; at least one group."""
    oldest: Int64Array = np.minimum.reduceat(groups.members, groups.offsets[:-1])
    return oldest


@dataclass(frozen=True, kw_only=True)
class PaddedStepFiller:
    """Fills steps with runs of samples sorted by length."""

    cost: Cost
    max_tokens: int
    max_patches: int | None
    max_wait: int

    def match(self, groups: Groups, window: Window, targets: Float64Array) -> Groups:
        """Fills steps around the oldest samples, the longest of these first.

        Args:
            groups: all of the window, longest sample first.
            window: at least as many samples as targets.
            targets: [steps] cost that each step's group should come close to.

        Returns:
            One group for each target, in their order.
        """
        order = groups.members
        lengths = window.lengths[order]
        patches = None if window.patches is None else window.patches[order]
        anchors = np.sort(oldest_of(groups))[: len(targets)]
        if len(anchors) < len(targets):  # more steps than groups: some are of single samples
            others = np.setdiff1d(np.arange(len(window)), anchors)
            anchors = np.concatenate([anchors, others[: len(targets) - len(anchors)]])
        rank = np.empty(len(order), np.int64)  # [window] position among the sorted samples
        rank[order] = np.arange(len(order))
        open_steps = np.arange(len(targets))
        made: list[Int64Array] = [order[:0]] * len(targets)
        free = np.ones(len(order), bool)
        for number, anchor in enumerate(np.sort(rank[anchors]).tolist()):
            left = np.flatnonzero(free)
            spare = len(targets) - number - 1  # samples that must remain for the other steps
            must = free[anchor] and window.ages[order[anchor]] >= self.max_wait
            begin, end, step = self._best(
                lengths[left],
                None if patches is None else patches[left],
                targets[open_steps],
                near=min(int(np.searchsorted(left, anchor)), len(left) - 1),
                must=must,
                most=len(left) - spare,
            )
            made[open_steps[step]] = order[left[begin:end]]
            free[left[begin:end]] = False
            open_steps = np.delete(open_steps, step)
        return Groups.of(made)

    def _best(
        self,
        lengths: Int64Array,
        patches: Int64Array | None,
        targets: Float64Array,
        *,
        near: int,
        must: bool,
        most: int,
    ) -> tuple[int, int, int]:
        """The run, and the target, that lose least: to cost below the target, and to padding.

        Each run that begins near `near` is tried with each target, as long as the target, the
        memory limit and `most` allow. Lengths 9, 8, 8, 5, 4 with a cost of samples x longest, and
        targets 16 and 9: from the 9, one sample costs 9 of 9, and loses nothing; from the first 8,
        two cost 16 of 16, and lose nothing; from the 5, three would cost 15 of 16, but there are
        only two, which cost 10 and lose 6/16, besides the padding of 1/10. The first of the best
        is taken.

        Args:
            lengths: [samples] longest first.
            patches: [samples] where they are limited.
            targets: [targets] cost of each open step.
            near: where the run should begin, more or less.
            must: whether it has to hold that sample.
            most: samples that it may hold.

        Returns:
            Begin and end of the run, and the position of its target.
        """
        low, high = max(0, near - _REACH), min(len(lengths), near + _REACH + 1)
        # begins, longest, room: [runs]; single, each: [runs, 1]; all others: [runs, targets].
        begins = np.arange(low, high)
        longest = lengths[low:high]
        single, pair = (self._cost(count, longest)[:, None] for count in (1, 2))
        each = pair - single  # what every further sample adds
        grows = each > _FLAT * single
        each[~grows] = 0.0
        room = self._room(lengths, patches, begins, most)
        spare = targets * (1 + _ROUNDING) - single
        unfit = (spare < 0) | (room < 1)[:, None]
        others = np.full(spare.shape, np.inf)
        np.divide(np.maximum(spare, 0.0), each, out=others, where=grows)
        sizes = np.maximum(np.minimum(others + 1, room[:, None]), 1).astype(np.int64)
        running = np.concatenate([[0], np.cumsum(lengths[low : high + int(sizes.max())])])
        first = (begins - low)[:, None]
        padding = 1 - (running[first + sizes] - running[first]) / (sizes * longest[:, None])
        # Where targets are 0, nothing costs anything.
        missing = 1 - (single + (sizes - 1) * each) / np.where(targets > 0, targets, 1.0)
        score = np.where(unfit, _UNFIT + np.abs(missing), missing) + padding
        if must:
            score[(begins[:, None] > near) | (begins[:, None] + sizes <= near)] = np.inf
        row, step = divmod(int(score.argmin()), len(targets))
        return int(begins[row]), int(begins[row] + sizes[row, step]), step

    def _room(
        self, lengths: Int64Array, patches: Int64Array | None, begins: Int64Array, most: int
    ) -> Int64Array:
        """[runs] samples that a run from each begin may hold."""
        room = self.max_tokens // lengths[begins]
        room = np.minimum(room, np.minimum(len(lengths) - begins, most))
        if patches is not None and self.max_patches is not None:
            running = np.concatenate([[0], np.cumsum(patches)])
            end = np.searchsorted(running, running[begins] + self.max_patches, side="right") - 1
            room = np.minimum(room, end - begins)
        return room

    def _cost(self, samples: int, longest: Int64Array) -> Float64Array:
        """[lengths] cost of a group of equally long samples, for each length."""
        count = np.full(len(longest), samples, np.int64)
        shapes = GroupShapes(count, count * longest, longest, count * longest * longest)
        return self.cost(shapes, packed=False)
