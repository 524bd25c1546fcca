"""Finds successors of roles for trainers that know a service by its file alone."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.service.handles import call
from evenstep.service.remote.discovery import road_in
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.roads import RoleGoneError
from evenstep.service.remote.role_place import Location

_PATIENCE = 60.0  # seconds for the registry to come back
_INTERVAL = 0.5


def with_finders(job: JobInfo, file: Path) -> JobInfo:
    """The job, whose roles may be played by other processes later."""
    registry = job.registry.found_by(FileFinder(file))

    def found(handle: RemoteHandle) -> RemoteHandle:
        return handle.found_by(RegistryFinder(registry, handle.role))

    constructors = tuple((ranks, found(handle)) for ranks, handle in job.constructors)
    return replace(job, registry=registry, planner=found(job.planner), constructors=constructors)


@dataclass(frozen=True)
class RegistryFinder:
    """Asks the registry, which watches all roles."""

    registry: RemoteHandle
    role: str

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        born = 0 if dead is None else dead.born
        found: Location = call(self.registry, "locate", self.role, born)
        return found


@dataclass(frozen=True)
class FileFinder:
    """Finds the registry where its file says; see `road_in`."""

    file: Path

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                road = road_in(self.file)
            except ConfigurationError as error:  # the service has removed it at its end
                raise RoleGoneError from error
            try:
                answer = road.send([("job", ())]).answer()
            except RoleGoneError:
                time.sleep(_INTERVAL)
                continue
            if answer.error is not None:
                raise answer.error
            known: Location = answer.value[0].registry.place.known
            return replace(known, road=road)
        raise RoleGoneError
