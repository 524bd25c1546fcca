"""Makers of roles, called in the role's own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evenstep.data.parquet import DECODED
from evenstep.service.handles import call
from evenstep.service.job import Job
from evenstep.service.loader_pool import LoaderPool
from evenstep.service.planner import Planner
from evenstep.service.preparer import Preparer
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.standing import Standing
from evenstep.service.remote.wait_timer import WaitTimer
from evenstep.service.source_layout import SourceLayout
from evenstep.service.source_loader import LoaderJob, LoaderPart, SourceLoader, preparer_of
from evenstep.service.store.runs import RunPlace
from evenstep.service.stored_planner import planner_of
from evenstep.strategy.mesh import ClientPlaceTree

if TYPE_CHECKING:
    from evenstep.service.data_constructor import DataConstructor

_STEPS_TOGETHER = 8
"""Small steps that a message is about: more save little."""


def make_loader(timer: WaitTimer, job: LoaderJob, preparer: Preparer | None = None) -> SourceLoader:
    DECODED.limit = job.decoded_bytes
    return SourceLoader(job, preparer)


def make_part(
    timer: WaitTimer, whole: LoaderJob, part: LoaderPart, preparer: Preparer | None
) -> SourceLoader:
    """One of the loaders of a job.

    Args:
        whole: has all sources.
    """
    return make_loader(timer, whole.of_part(part), preparer)


def make_standby(jobs: Sequence[LoaderJob]) -> Preparer:
    """What a loader that plays any of these jobs needs, but for its sources, which it opens when it
    is told which: their files may take much memory. What the jobs need is imported by now."""
    preparer = preparer_of(jobs)
    preparer.start()
    return preparer


def make_planner(
    timer: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RemoteHandle],
    state: Mapping[str, Any] | None,
    plan_log: str | None,
    store: RunPlace | None = None,
    mesh: ClientPlaceTree | None = None,
) -> Planner:
    handles = [handle.using(timer=timer) for handle in loaders]
    pool = LoaderPool(layout, handles, columns=job.columns, sources=job.sources)
    return planner_of(job, pool, state=state, plan_log=plan_log, store=store, mesh=mesh)


def make_constructor(
    timer: WaitTimer,
    job: Job,
    layout: SourceLayout,
    loaders: list[RemoteHandle],
    planner: RemoteHandle,
    groups: list[int],
) -> DataConstructor:
    from evenstep.service.data_constructor import DataConstructor  # which needs torch

    return DataConstructor(
        job,
        groups,
        planner.using(timer=timer),
        [handle.using(timer=timer) for handle in loaders],
        layout,
        together=max(min(_STEPS_TOGETHER, job.plans_kept // 8), 1),  # plans are kept for trainers
        on_queued=lambda seconds: timer.add("queue", seconds),
    )


def make_planner_anew(
    timer: WaitTimer, job: Job, registry: RemoteHandle, plan_log: str | None, store: RunPlace | None
) -> Planner:
    """As the job stands by now."""
    standing: Standing = call(registry, "standing")
    return make_planner(
        timer,
        job,
        standing.layout,
        list(standing.info.loaders),
        standing.state,
        plan_log,
        store,
        standing.tree if standing.begins else None,
    )


def make_constructor_anew(
    timer: WaitTimer, job: Job, registry: RemoteHandle, groups: list[int], mesh: int
) -> DataConstructor:
    """As the job stands by now.

    Args:
        job: on the constructor's mesh.
        mesh: the number of that; see `JobInfo`.
    """
    import evenstep.service.data_constructor  # noqa: F401 - torch, while the registry begins

    standing: Standing = call(registry, "standing")
    info = standing.info
    given = standing.layout, list(info.loaders), info.planner, groups
    made = make_constructor(timer, job, *given)
    end = standing.end_of(mesh)
    if end is not None:
        made.end_at(end)
    elif standing.held:
        made.hold()
    return made
