"""`plan_loaders`: the layout of loaders for a job, from measurements of its sources."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from evenstep.arrays import Float64Array
from evenstep.mixture.schedules import Schedule, as_schedule
from evenstep.service.job.job import Job
from evenstep.service.sizing.job_profile import JobProfile
from evenstep.service.sizing.profiling import profile as measure
from evenstep.strategy.loaders import (
    LoaderLayout,
    LoaderLimits,
    LoadModel,
    SourceProfile,
    draws_of,
    packed,
    weights_ahead,
)
from evenstep.strategy.loaders.demand import telling_rows

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
    limits = LoaderLimits(
        step_seconds=1.0 if step_seconds is None else step_seconds,
        memory=_half_of_memory() if memory is None else memory,
        workers=workers,
        cores=cores,
        process_bytes=known.process_bytes,
        buffer_bytes=job.memory.buffer_bytes,
        staged_steps=job.memory.prefetch + 2,
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


def _half_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
