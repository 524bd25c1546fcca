"""`Standing`: how a running job stands, for processes of it that are begun anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.source_layout import SourceLayout
from evenstep.strategy.mesh import ClientPlaceTree


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Known to the process that has started the job, and to its registry."""

    info: JobInfo
    layout: SourceLayout
    """Which of the loaders owns which samples."""
    tree: ClientPlaceTree
    """The mesh that is planned for."""
    state: Mapping[str, Any] | None
    """From which a planner without a store begins."""
    begins: tuple[int, ...] = ()
    """First steps of the meshes that have followed the first one."""
    held: bool = False
    """Whether constructors of the last mesh are to begin no step; see `DataConstructor.hold`."""
    former: tuple[RemoteHandle, ...] = ()
    """Constructors of the mesh before."""
    leaving: tuple[RemoteHandle, ...] = ()
    """Loaders that were taken out, and may still be asked for samples."""
    numbered: int = 0
    """Loaders with numbers below this one that are not played here have ended; others may be
    starting."""
    scaled: tuple[Mapping[str, Any], ...] = ()
    """See `ScalingThread`; and `short`, `WantedLoaders.short`."""
    short: tuple[str, ...] = ()
    number: int = 0
    """Of two, the one with the higher number counts."""

    @property
    def roles(self) -> list[RemoteHandle]:
        """All that are played."""
        return [*self.info.roles, *self.former, *self.leaving]

    def has_ended(self, number: int, role: str) -> bool:
        """Whether a loader was taken out and is not asked for anything any more."""
        return number < self.numbered and role not in [each.role for each in self.roles]

    def end_of(self, mesh: int) -> int | None:
        """The step at which a mesh, the first of which is number 0, has ended; None if it has
        not."""
        return min(self.begins[mesh:], default=None)
