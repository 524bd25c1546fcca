"""Scaling: how many loaders and workers each group of sources needs, while weights move.

The sources that a layout gives one loader stay together, as a group. At more demand its loader gets
more workers; where these do not help, its sources are shared by more loaders. Draws depend on
neither, so scaling changes no batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Int64Array
from evenstep.plan.value_checks import check_at_least
from evenstep.strategy.loaders.load_model import LoadModel, Piece
from evenstep.strategy.loaders.loader_layout import LoaderLayout


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
