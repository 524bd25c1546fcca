"""Scaling: how many loaders and workers each group of sources needs, while weights move.

The sources that a layout gives one loader stay together, as a group. At more demand its loader gets
more workers; where these do not help, its sources are shared by more loaders. Draws depend on
neither, so scaling changes no batch.

Where weights are a function of the step, `scaling_plan` looks ahead: what a step needs is there
`lead` steps before it, and for `hold` steps after it. Where they follow the training, `LiveScaling`
goes by a moving average, and changes something only when several looks in a row agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from evenstep.arrays import BoolArray, Float64Array, Int64Array
from evenstep.errors import ConfigurationError
from evenstep.plan.value_checks import check_at_least
from evenstep.strategy.loaders.load_model import LoadModel, Piece
from evenstep.strategy.loaders.loader_layout import LoaderLayout


@dataclass(frozen=True, kw_only=True)
class ScalingLimits:
    """Within which a group is scaled. The workers of a loader are limited by `LoaderLimits`, too.

    Args:
        most_loaders: that share the sources of a group.
        lead: steps that it takes until more loaders or workers are ready.
        hold: steps, or looks of `LiveScaling`, for which less must be enough before there is less.
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


@dataclass(frozen=True)
class ScalingPlan:
    """Loaders and workers at each step to come. See `scaling_plan`."""

    needs: GroupNeeds
    """[steps, groups] what each step needs by itself."""
    loaders: Int64Array
    """[steps, groups] that are there, and `workers` of each."""
    workers: Int64Array


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


def scaling_plan(
    model: LoadModel,
    groups: Sequence[Sequence[Piece]],
    limits: ScalingLimits,
) -> ScalingPlan:
    """What is to be there at each step, so that no step waits and little is idle.

    Args:
        model: with the draws of the steps, one row each.
        groups: of the layout that runs, see `groups_of_layout`.
    """
    needs = group_needs(model, groups, limits)
    return ScalingPlan(
        needs, _most_around(needs.loaders, limits), _most_around(needs.workers, limits)
    )


def _most_around(needed: Int64Array, limits: ScalingLimits) -> Int64Array:
    """[steps, groups] the most that any of the `hold` steps before and the `lead` steps after
    needs."""
    padded = np.pad(needed, ((limits.hold, limits.lead), (0, 0)), mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, limits.hold + limits.lead + 1, 0)
    most: Int64Array = windows.max(axis=-1)
    return most


@dataclass(frozen=True)
class LiveState:
    """What `LiveScaling` knows after some looks."""

    draws: Float64Array
    """[sources] moving average of what steps draw."""
    loaders: Int64Array
    """[groups] that are to be there, and `workers` of each."""
    workers: Int64Array
    short: BoolArray
    """[groups] whether that is not enough for the average."""
    above: Int64Array
    """[groups] looks in a row that needed more, and `below`, that needed less."""
    below: Int64Array
    most: Int64Array
    """[groups, 2] loaders and workers that the looks of `below` needed at most."""


class LiveScaling:
    """Scales by what was drawn. Pure: `after` gives the next state, and keeps none."""

    def __init__(
        self,
        model: LoadModel,
        groups: Sequence[Sequence[Piece]],
        limits: ScalingLimits,
        *,
        patience: int = 3,
        memory: float = 0.7,
        headroom: float = 0.2,
    ) -> None:
        """
        Args:
            model: of the sources; its draws are those before the first look.
            patience: looks in a row that must need more before there is more.
            memory: part of the moving average that is kept at each look.
            headroom: share of the demand that is provided for beyond the average.
        """
        check_at_least(1, patience=patience)
        if not 0 <= memory < 1 or not headroom >= 0:
            raise ConfigurationError(
                f"memory={memory} must be from 0 to below 1, and headroom={headroom} at least 0"
            )
        self._model, self._groups, self._limits = model, groups, limits
        self._patience, self._memory, self._headroom = patience, memory, headroom

    def first(self) -> LiveState:
        """The state before the first look: what the model's draws need."""
        draws = self._model.draws.mean(axis=0)
        needs = self._needs(draws)
        none = np.zeros(len(self._groups), np.int64)
        pairs = np.stack([none, none], axis=1)
        return LiveState(
            draws, needs.loaders[0], needs.workers[0], needs.short[0], none, none, pairs
        )

    def after(self, state: LiveState, drawn: Float64Array) -> LiveState:
        """The state after another look.

        Args:
            drawn: [sources] samples that a step has drawn since the last look, on average.
        """
        draws = self._memory * state.draws + (1 - self._memory) * drawn
        needs = self._needs(draws)
        needed = np.stack([needs.loaders[0], needs.workers[0]], axis=1)  # [groups, 2]
        there = np.stack([state.loaders, state.workers], axis=1)
        more: BoolArray = np.any(needed > there, axis=1)
        less: BoolArray = ~more & np.any(needed < there, axis=1)
        above = np.where(more, state.above + 1, 0)
        below = np.where(less, state.below + 1, 0)
        most = np.maximum(state.most, needed) * less[:, None]
        up, down = above >= self._patience, below > self._limits.hold
        there = np.where(up[:, None], np.maximum(there, needed), there)
        there = np.where(down[:, None], most, there)
        return LiveState(
            draws,
            there[:, 0],
            there[:, 1],
            needs.short[0],
            np.where(up, 0, above),
            np.where(down, 0, below),
            np.where(down[:, None], 0, most),
        )

    def _needs(self, draws: Float64Array) -> GroupNeeds:
        model = self._model.at(draws[None] * (1 + self._headroom))
        return group_needs(model, self._groups, self._limits)
