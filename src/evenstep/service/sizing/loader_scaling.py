"""`LoaderScaling`: the loaders that a running job needs, from the weights of the steps to come."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.mixture.schedules import PerStep
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.sizing.job_profile import JobProfile
from evenstep.service.sizing.loader_planning import draws_at, schedule_of
from evenstep.strategy.loaders import (
    LiveScaling,
    LiveState,
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    ScalingLimits,
    groups_of_layout,
    packed,
    scaling_plan,
)

_LEAD_SECONDS = 15.0  # in which loaders are started and have read ahead
_HOLD = 4  # times as long less must be enough


@dataclass(frozen=True)
class WantedLoaders:
    """See `LoaderScaling.wanted`."""

    layout: SourceLayout
    short: tuple[str, ...]
    """Sources of loaders that do not keep up, though they are as many as they may be."""


class LoaderScaling:
    """Packs the sources into loaders as the first step needs them; the sources of a loader stay
    together. Where later steps need more, a loader gets more workers, or more loaders share its
    sources."""

    def __init__(
        self,
        job: Job,
        profile: JobProfile,
        *,
        step_seconds: float,
        memory: int,
        workers: int = 8,
        limits: ScalingLimits | None = None,
        schedule: Any = None,
        begin: int = 0,
    ) -> None:
        """
        Args:
            profile: of the job's sources; see `evenstep.service.profile`.
            step_seconds: of the trainer's step, in which the loaders must prepare one.
            memory: bytes of a loader and its workers.
            workers: processes of a loader that transform, at most.
            limits: None lets up to 8 loaders share sources, looks as many steps ahead as are
                trained in 15 seconds, and keeps what is not needed four times as long.
            schedule: of weights, if the strategy gives `mix` another one than `draws.schedule`.
            begin: the first step.

        Raises:
            MismatchError: the profile does not have a source of the job.
        """
        lead = math.ceil(_LEAD_SECONDS / step_seconds)
        self.limits = limits or ScalingLimits(lead=lead, hold=_HOLD * lead)
        self._schedule = schedule_of(job, schedule)
        self.workers = workers
        self._job, self._profiles = job, profile.of(job.names)
        self._model = LoadModel(
            self._profiles,
            self._draws([begin]),
            LoaderLimits(
                step_seconds=step_seconds,
                memory=memory,
                workers=workers,
                process_bytes=profile.process_bytes,
                buffer_bytes=job.memory.buffer_bytes,
                staged_steps=job.memory.prefetch + 2,
            ),
        )
        self.layout: LoaderLayout = packed(self._model)
        """The layout of the first step."""
        self._groups = groups_of_layout(self.layout)
        self._live = LiveScaling(self._model, self._groups, self.limits)
        self._state: LiveState = self._live.first()
        self._seen: tuple[int, Float64Array] | None = None

    def wanted(self, step: int, drawn: Mapping[str, int]) -> WantedLoaders:
        """The loaders that are needed now. A schedule that is a function of the step says what
        later steps need. If weights follow the training, what was drawn since the last call does.

        Args:
            step: that is planned next.
            drawn: samples drawn since the start, by source.
        """
        if self._schedule.peaks() is None and not isinstance(self._schedule, PerStep):
            self._look(step, np.array([drawn[name] for name in self._job.names], np.float64))
            return self._wanted(self._state.loaders, self._state.workers, self._state.short)
        first, limits = max(step - self.limits.hold, 0), self.limits
        model = self._model.at(self._draws(range(first, step + limits.lead + 1)))
        plan = scaling_plan(model, self._groups, limits)
        at = step - first
        return self._wanted(plan.loaders[at], plan.workers[at], plan.needs.short[at:].any(axis=0))

    def _look(self, step: int, drawn: Float64Array) -> None:
        if self._seen is not None and step > self._seen[0]:
            of_step = (drawn - self._seen[1]) / (step - self._seen[0])
            self._state = self._live.after(self._state, of_step)
        if self._seen is None or step > self._seen[0]:
            self._seen = step, drawn

    def _wanted(self, loaders: Any, workers: Any, short: Any) -> WantedLoaders:
        names = [
            share.source
            for each, is_short in zip(self.layout.loaders, short.tolist())
            for share in each.shares
            if is_short
        ]
        layout = SourceLayout.scaled(self.layout, loaders.tolist(), workers.tolist())
        return WantedLoaders(layout, tuple(dict.fromkeys(names)))

    def _draws(self, steps: Sequence[int]) -> Float64Array:
        """[steps, sources] samples that steps draw."""
        return draws_at(self._job, self._schedule, self._profiles, steps)
