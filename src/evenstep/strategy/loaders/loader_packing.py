"""`packed`: sources packed into as few loaders as can be found, by memory and time together.

A source that fits no loader is cut into as few parts as do. Parts are then packed as bins are, each
with several limits, in several orders. Everything is decided by numbers: equal input gives equal
layouts.

While weights move, the sources that a layout gives one loader stay together, as a group. At more
demand its loader gets more workers; where these do not help, its sources are shared by more
loaders. Draws depend on neither, so scaling changes no batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.plan.value_checks import check_at_least
from evenstep.strategy.loaders.load_model import MOST_PARTS, LoadModel, Piece
from evenstep.strategy.loaders.loader_layout import LoaderLayout

_ORDERS = 12  # shuffled orders that are tried besides the sorted ones
_NONE = -1


def packed(model: LoadModel) -> LoaderLayout:
    """The layout with the fewest loaders, and among those with the fewest workers, that was found.
    A part that fits no loader gets a loader to itself, and is reported as a shortage."""
    pieces: list[Piece] = []
    starving: list[Piece] = []
    for source in range(len(model.sources)):
        parts = model.fewest_parts(source)
        if parts is not None:
            pieces += [Piece(source, parts)] * parts
        else:
            best = _least_bad(model, source)
            starving += [Piece(source, best)] * best
    groups = [[piece] for piece in starving]
    if pieces:
        groups += _Packing(model, pieces).best()
    return LoaderLayout.of(model, groups)


def _least_bad(model: LoadModel, source: int) -> int:
    """Parts of a source that fits no loader: those that take least time, few rather than many."""
    seconds = model.needs(
        model.vectors([Piece(source, n) for n in range(1, MOST_PARTS + 1)])
    ).seconds
    return int((seconds <= seconds.min() * 1.05).argmax()) + 1


class _Packing:
    def __init__(self, model: LoadModel, pieces: Sequence[Piece]) -> None:
        self.model, self.pieces = model, pieces
        self.vectors = model.vectors(pieces)  # [pieces, resources]
        limits = model.limits
        scale = np.full(self.vectors.shape[1], limits.seconds)
        scale[:3] = max(limits.memory - model.process_bytes, 1)
        times = (len(scale) - 3) // 3
        scale[3 + 2 * times :] *= max(limits.workers, 1)
        self.sizes = self.vectors / scale  # shares of a loader that each takes

    def best(self) -> list[list[Piece]]:
        """[loaders] the best packing of all orders."""

        def score(owner: Int64Array) -> tuple[int, int, float]:
            sums = np.zeros((int(owner.max()) + 1, self.vectors.shape[1]))
            np.add.at(sums, owner, self.vectors)
            needs = self.model.needs(sums)
            return len(sums), int(needs.workers.sum()), float(needs.seconds.max())

        owner = min(map(self._in_order, self._orders()), key=score)
        loaders = range(int(owner.max()) + 1)
        members = [np.flatnonzero(owner == n).tolist() for n in loaders]
        return [[self.pieces[each] for each in group] for group in members]

    def _orders(self) -> list[Int64Array]:
        times = (self.sizes.shape[1] - 3) // 3
        memory = self.sizes[:, :3].sum(axis=1)
        own = self.sizes[:, 3 : 3 + times].max(axis=1)
        prepare = self.sizes[:, 3 + 2 * times :].max(axis=1)
        largest = np.maximum(np.maximum(memory, own), prepare)
        keys = [largest, memory + own + prepare, memory, own + prepare]
        rng = np.random.Generator(np.random.PCG64(0))
        keys += [keys[0] * rng.uniform(0.7, 1.3, len(keys[0])) for _ in range(_ORDERS)]
        return [np.argsort(-key, kind="stable") for key in keys]

    def _in_order(self, order: Int64Array) -> Int64Array:
        """[pieces] loader of each, where each in turn goes to the fullest that has room."""
        owner = np.full(len(order), _NONE, np.int64)
        sums = np.zeros((0, self.vectors.shape[1]))
        for piece in order.tolist():
            chosen = self._fullest(sums, self.vectors[piece])
            if chosen == _NONE:
                chosen = len(sums)
                sums = np.vstack([sums, np.zeros(self.vectors.shape[1])])
            owner[piece] = chosen
            sums[chosen] += self.vectors[piece]
        return owner

    def _fullest(self, sums: Float64Array, vector: Float64Array) -> int:
        """The loader with room for a piece that needs fewest further workers for it, and of these
        the one with most memory and time in use; `_NONE` if there is none."""
        if not len(sums):
            return _NONE
        before, after = self.model.needs(sums), self.model.needs(sums + vector)
        if not after.fits.any():
            return _NONE
        limits = self.model.limits
        in_use = after.memory / limits.memory + after.seconds / limits.seconds
        # [loaders] further workers first, then what is in use, below 2 at most
        score = np.where(after.fits, 4.0 * (before.workers - after.workers) + in_use, -np.inf)
        return int(score.argmax())


@dataclass(frozen=True, kw_only=True)
class ScalingLimits:
    """Within which a group is scaled. The workers of a loader are limited by `LoaderLimits`, too.

    Args:
        most_loaders: that share the sources of a group.
        lead: steps that it takes until more loaders or workers are ready. Where weights are a
            function of the step, what a step needs is there so many steps before it.
        hold: steps, or looks where weights follow the training, for which less must be enough
            before there is less.
    """

    most_loaders: int = 8
    lead: int = 0
    hold: int = 0

    def __post_init__(self) -> None:
        check_at_least(0, lead=self.lead, hold=self.hold)
        check_at_least(1, most_loaders=self.most_loaders)


@dataclass(frozen=True)
class GroupNeeds:
    """What groups need at some times."""

    loaders: Int64Array
    """[times, groups] that share the sources of the group."""
    workers: Int64Array
    """[times, groups] of each of these loaders."""
    short: BoolArray
    """[times, groups] whether that is not enough, and more is not allowed or does not help."""


def groups_of_layout(layout: LoaderLayout) -> list[list[Piece]]:
    """[loaders] the parts of sources that each has."""
    numbers = {name: number for number, name in enumerate(layout.sources)}
    return [
        [Piece(numbers[share.source], share.parts) for share in loader.shares]
        for loader in layout.loaders
    ]


def group_needs(
    model: LoadModel, groups: Sequence[Sequence[Piece]], limits: ScalingLimits
) -> GroupNeeds:
    """What each group needs at each time of the model: as few loaders as keep up, and as few
    workers as these then need. Memory for buffers is that of the largest demand."""
    times = len(model.draws)
    loaders = np.full((times, len(groups)), limits.most_loaders, np.int64)
    workers = np.full((times, len(groups)), model.limits.workers, np.int64)
    short = np.ones((times, len(groups)), np.bool_)
    for number, group in enumerate(groups):
        for count in range(1, limits.most_loaders + 1):
            pieces = [Piece(source, parts * count) for source, parts in group]
            total = model.vectors(pieces).sum(axis=0)
            by_time = total[3:].reshape(3, times).T
            needs = model.needs(np.hstack([np.tile(total[:3], (times, 1)), by_time]))
            now = short[:, number] & needs.fits
            loaders[now, number] = count
            workers[now, number] = needs.workers[now]
            short[:, number] &= ~needs.fits
    return GroupNeeds(loaders, workers, short)
