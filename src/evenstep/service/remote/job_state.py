"""`JobInfo`: which roles a running job has. `JobState`: what a role needs to restart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.service.job.source_layout import SourceLayout
from evenstep.service.remote.handles import RemoteHandle
from evenstep.strategy.mesh import ClientPlaceTree

Constructors = tuple[tuple[tuple[int, ...], RemoteHandle], ...]
"""The ranks that each constructor serves, and the constructor."""


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """A running job, for clients and other processes that take part in it."""

    name: str
    backend: str
    run_id: int
    """Nanoseconds since 1970 when the job was started; no two runs of a name have the same."""
    fingerprint: str
    tree: ClientPlaceTree
    prefetch: int
    warn_after: float | None
    plans_kept: int
    """See `ServiceMemory`; and `patience`, `ServiceFaults`."""
    patience: float
    step: int
    """The first step of the mesh."""
    registry: RemoteHandle
    planner: RemoteHandle
    loaders: tuple[RemoteHandle, ...]
    constructors: Constructors
    mesh: int = 0
    """How many meshes the job had before this one."""
    step_log: str | None = None
    """A file to which the client of rank 0 adds a line for each step, where that rank trains."""

    @property
    def roles(self) -> list[RemoteHandle]:
        return [self.planner, *self.loaders, *(handle for _, handle in self.constructors)]

    def constructor(self, rank: int) -> RemoteHandle:
        """The constructor that serves a rank.

        Raises:
            ConfigurationError: the mesh has no such rank.
        """
        self.tree.place(rank)
        return next(handle for ranks, handle in self.constructors if rank in ranks)


def check_name(job: str) -> None:
    """
    Raises:
        ConfigurationError: the name has other characters than are allowed.
    """
    if not job or not all(c.isalnum() or c in "-_." for c in job):
        raise ConfigurationError(
            f"name={job!r} of a job must consist of letters, digits, '-', '_' and '.'"
        )


@dataclass(frozen=True, kw_only=True)
class JobState:
    """What the process that started the job tells its registry, and the registry tells roles that
    restart."""

    info: JobInfo
    layout: SourceLayout
    """Which of the loaders owns which samples."""
    tree: ClientPlaceTree
    """The mesh that is planned for."""
    planner_state: Mapping[str, Any] | None
    """From which a planner without a store starts."""
    mesh_begins: tuple[int, ...] = ()
    """First steps of all meshes but the first."""
    held: str = ""
    """Why constructors of the last mesh must begin no step; see `DataConstructor.hold`."""
    old_constructors: tuple[RemoteHandle, ...] = ()
    """Those of the previous mesh."""
    old_loaders: tuple[RemoteHandle, ...] = ()
    """Loaders that were taken out, and may still be asked for samples."""
    loaders_started: int = 0
    """Loaders with a number below this one that are not among the roles have ended; others may be
    starting."""
    scaled: tuple[Mapping[str, Any], ...] = ()
    """See `ScalingThread`; and `short`, `WantedLoaders.short`."""
    short: tuple[str, ...] = ()
    version: int = 0
    """Of two states, the one with the higher version counts."""

    @property
    def roles(self) -> list[RemoteHandle]:
        """All roles that processes run."""
        return [*self.info.roles, *self.old_constructors, *self.old_loaders]

    def has_ended(self, number: int, role: str) -> bool:
        """Whether a loader was taken out and is not asked for anything any more."""
        return number < self.loaders_started and role not in [each.role for each in self.roles]

    def end_of(self, mesh: int) -> int | None:
        """The step at which a mesh, the first of which is number 0, has ended; None if it has
        not."""
        return min(self.mesh_begins[mesh:], default=None)
