"""Makers of roles, called in the role's own process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evenstep.data.parquet import DECODED
from evenstep.service.constructor.data_constructor import DataConstructor
from evenstep.service.job.job import Job
from evenstep.service.job.source_layout import LoaderJob, LoaderPart, SourceLayout
from evenstep.service.messages import WaitTimer, call
from evenstep.service.planner.planner import Planner
from evenstep.service.planner.store.run_store import RunPlace
from evenstep.service.planner.stored_planner import planner_of
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.source_loader.source_loader import SourceLoader, Standby


def make_loader(timer: WaitTimer, job: LoaderJob, standby: Standby | None = None) -> SourceLoader:
    DECODED.limit = job.decoded_bytes
    loader = SourceLoader(job, standby)
    loader.fill_in_background()
    return loader


def make_part(
    timer: WaitTimer, whole: LoaderJob, part: LoaderPart, standby: Standby | None
) -> SourceLoader:
    """One of the loaders of a job.

    Args:
        whole: has all sources.
    """
    return make_loader(timer, whole.of_part(part), standby)


def make_standby(jobs: Sequence[LoaderJob], *, opens: bool = True) -> Standby:
    """Modules that the jobs need are imported by now.

    Args:
        opens: whether it opens sources.
    """
    DECODED.limit = min(job.decoded_bytes for job in jobs)
    standby = Standby(jobs)
    standby.preparer.start()
    if opens:
        standby.open()
    return standby


def make_planner(
    timer: WaitTimer, job: Job, layout: SourceLayout, loaders: list[RemoteHandle], *given: Any
) -> Planner:
    """
    Args:
        given: see `planner_of`.
    """
    return planner_of(job, layout, [handle.using(timer=timer) for handle in loaders], *given)


def make_constructor(
    timer: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RemoteHandle],
    planner: RemoteHandle,
    groups: list[int],
) -> DataConstructor:
    import evenstep.service.constructor.batch_builder  # noqa: F401  # torch, before the first step

    return DataConstructor(
        job,
        groups,
        planner.using(timer=timer),
        [handle.using(timer=timer) for handle in loaders],
        layout,
        on_queued=lambda seconds: timer.add("queue", seconds),
    )


def restart_planner(
    timer: WaitTimer,
    job: Job,
    registry: RemoteHandle,
    seen: RunPlace | None,
    store: RunPlace | None,
) -> Planner:
    """From the job's current state."""
    job_state = call(registry, JobRegistry.job_state)
    mesh = job_state.tree if job_state.mesh_begins else None
    given = job_state.planner_state, seen, store, mesh
    return make_planner(timer, job, job_state.layout, list(job_state.info.loaders), *given)


def restart_constructor(
    timer: WaitTimer, job: Job, registry: RemoteHandle, groups: list[int], mesh: int
) -> DataConstructor:
    """From the job's current state.

    Args:
        job: on the constructor's mesh.
        mesh: the number of that; see `JobInfo`.
    """
    # Imports torch while the registry starts.
    import evenstep.service.constructor.batch_builder  # noqa: F401

    job_state = call(registry, JobRegistry.job_state)
    info = job_state.info
    given = job_state.layout, list(info.loaders), info.planner, groups
    made = make_constructor(timer, job, *given)
    end = job_state.end_of(mesh)
    if end is not None:
        made.end_at(end)
    elif job_state.held:
        made.hold(job_state.held)
    return made
