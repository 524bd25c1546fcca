"""`JobInfo`: who plays which role in a running job."""

from __future__ import annotations

from dataclasses import dataclass

from evenstep.errors import ConfigurationError
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
