"""`plan_loaders`: the layout of loaders for a job, from measurements of its sources.

`LoaderScaling` finds the loaders that a running job needs, from the weights of the steps to come.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.mixture.schedules import Constant, PerStep, Schedule, as_schedule
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.sizing.job_profile import JobProfile
from evenstep.service.sizing.job_profile import profile as measure
from evenstep.strategy.loaders import (
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    ScalingLimits,
    SourceProfile,
    draws_of,
    group_needs,
    groups_of_layout,
    packed,
    weights_ahead,
)
from evenstep.strategy.loaders.load_model import telling_rows

_HORIZON = 1 << 20  # steps whose weights are looked at
_QUICK = {"samples": 16, "seconds": 1.0}
_SLOWER = 1.25


def plan_loaders(
    job: Job,
    profile: JobProfile | None = None,
    *,
    step_seconds: float | None = None,
    memory: int | None = None,
    cores: float | None = None,
    workers: int = 8,
    schedule: Any = None,
) -> LoaderLayout:
    """The loaders that a job needs, for ``es.start(job, loaders=...)``.

    Args:
        profile: of `profile`; None measures a few samples of each source now.
        step_seconds: of the trainer's step, in which the loaders must prepare one; None is as fast
            as the cores allow.
        memory: bytes of a loader and its workers; None is half of this machine's.
        cores: of all loaders together; None is those of this machine.
        workers: processes of a loader that transform, at most.
        schedule: of weights, if the strategy gives `mix` another one than `DrawOptions.schedule`.

    Raises:
        MismatchError: the profile does not have a source of the job.
    """
    known = measure(job, **_QUICK) if profile is None else profile  # type: ignore[arg-type]
    profiles = known.of(job.names)
    weights = schedule_of(job, schedule)
    draws = telling_rows(draws_at(job, weights, profiles, _steps(weights)))
    cores = float(len(os.sched_getaffinity(0))) if cores is None else cores
    half_of_memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    limits = _limits(
        *(job, known),
        step_seconds=1.0 if step_seconds is None else step_seconds,
        memory=half_of_memory if memory is None else memory,
        workers=workers,
        cores=cores,
    )
    if step_seconds is not None:
        return packed(LoadModel(profiles, draws, limits))
    seconds = 1e-6
    while True:
        layout = packed(LoadModel(profiles, draws, replace(limits, step_seconds=seconds)))
        longer = max(layout.seconds / seconds / limits.busy, layout.cores / cores)
        if longer <= 1 + 1e-6:
            return layout
        seconds *= max(longer if layout.cores > cores else 1.0, _SLOWER)


def _limits(job: Job, profile: JobProfile, **given: Any) -> LoaderLimits:
    return LoaderLimits(
        process_bytes=profile.process_bytes,
        buffer_bytes=job.memory.buffer_bytes,
        staged_steps=job.memory.prefetch + 2,
        **given,
    )


def schedule_of(job: Job, given: Any) -> Schedule:
    """The weights of a job's steps.

    Args:
        given: another schedule than the job's.
    """
    own = {source.name: source.weight for source in job.sources}
    return as_schedule(given or job.draws.schedule or own)


def draws_at(
    job: Job, schedule: Schedule, profiles: Sequence[SourceProfile], steps: Iterable[int]
) -> Float64Array:
    """[steps, sources] samples that steps draw."""
    return draws_of(
        weights_ahead(schedule, job.names, steps),
        np.array([each.tokens for each in profiles]),
        samples_per_step=job.draws.samples_per_step,
        tokens_per_step=job.draws.tokens_per_step,
        by=job.draws.by,
    )


def _steps(schedule: Schedule) -> list[int]:
    """Steps to come, near and far."""
    steps = {0, *np.linspace(0, 100_000, 257).astype(int).tolist()}
    steps |= {1 << power for power in range(_HORIZON.bit_length())}
    return sorted(steps | set(getattr(schedule, "stages", ())))


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

        Raises:
            MismatchError: the profile does not have a source of the job.
        """
        lead = math.ceil(_LEAD_SECONDS / step_seconds)
        self.limits = limits or ScalingLimits(lead=lead, hold=_HOLD * lead)
        self._schedule = schedule_of(job, schedule)
        self.workers = workers
        self._job, self._profiles = job, profile.of(job.names)
        self._seen = self._draws([0])
        """[looks, sources] what the last looks saw, where weights follow the training."""
        needs = {"step_seconds": step_seconds, "memory": memory, "workers": workers}
        self._model = LoadModel(self._profiles, self._seen, _limits(job, profile, **needs))
        self.layout: LoaderLayout = packed(self._model)
        """The layout of the first step."""
        self._groups = groups_of_layout(self.layout)

    def wanted(
        self, step: int, weights: Mapping[str, float], *, by_hand: bool = False
    ) -> WantedLoaders:
        """The loaders that are needed now. A schedule that is a function of the step says what
        later steps need. If weights follow the training, those that it has count.

        Args:
            step: that is planned next.
            weights: of the step planned last; empty before the first.
            by_hand: whether somebody has changed them; see `Steering`.
        """
        limits, schedule = self.limits, self._schedule
        if not by_hand and (schedule.peaks() is not None or isinstance(schedule, PerStep)):
            first = max(step - limits.hold, 0)
            draws, now = self._draws(range(first, step + limits.lead + 1)), step - first
        else:
            if weights:
                drawn = self._draws([step], Constant(weights))
                self._seen = np.vstack([self._seen, drawn])[-limits.hold - 1 :]
            draws, now = self._seen, len(self._seen) - 1
        needs = group_needs(self._model.at(draws), self._groups, limits)
        loaders, workers = needs.loaders.max(axis=0), needs.workers.max(axis=0)
        short = np.flatnonzero(np.any(needs.short[now:], axis=0)).tolist()
        names = (share.source for n in short for share in self.layout.loaders[n].shares)
        layout = SourceLayout.scaled(self.layout, loaders.tolist(), workers.tolist())
        return WantedLoaders(layout, tuple(dict.fromkeys(names)))

    def _draws(self, steps: Sequence[int], schedule: Schedule | None = None) -> Float64Array:
        """[steps, sources] samples that steps draw."""
        return draws_at(self._job, schedule or self._schedule, self._profiles, steps)
