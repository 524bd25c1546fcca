"""Finds a running job by the file that it writes, and the new processes of roles that died."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from evenstep.errors import ConfigurationError, EvenstepError
from evenstep.service.messages import call, message
from evenstep.service.registry.registry import JobRegistry
from evenstep.service.remote.channels import Location, RoleGoneError, SocketChannel
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.job_state import JobInfo
from evenstep.service.transport.endpoint import SUFFIX, path_of, read_endpoint


def channel_in(file: Path) -> SocketChannel:
    """To the registry that has written a file, or to one that has restarted on its host: that uses
    the same port and another socket.

    Raises:
        ConfigurationError: there is no file, or it is none of a service.
    """
    endpoint = read_endpoint(file)
    return SocketChannel(replace(endpoint, machine="") if endpoint.tcp else endpoint)


SILENT = 15.0
"""Seconds in which a service that runs says something."""


def job_in(file: Path, patience: float = SILENT) -> JobInfo | None:
    """The job that has written a file; None if there is no file, or the job has ended.

    Args:
        patience: seconds to wait for an answer.

    Raises:
        ConfigurationError: the file is none of a service.
        EvenstepError: the service says nothing.
    """
    if not file.exists():
        return None
    try:
        asked = channel_in(file).send([message(JobRegistry.job)])
        if not asked.wait(patience):
            raise EvenstepError(
                f"the service at {file} is there, and has said nothing for {patience:.3g} s: its "
                "process is stopped, hangs or is overloaded; kill -CONT it, or start the job again"
            )
        job: JobInfo | None = asked.answer().only()
        return job
    except RoleGoneError:
        return None


def no_job(name: str, where: str, running: Iterable[str] = ()) -> ConfigurationError:
    """The error for a name that no job has.

    Args:
        running: other jobs than those that have written a file on this machine.
    """
    names = set(running)
    for file in path_of("").parent.glob(f"*{SUFFIX}"):
        with suppress(EvenstepError):
            job = job_in(file, patience=1)
            names |= {job.name} if job is not None else set()
    return ConfigurationError(
        f"no job named {name!r} runs on {where}; running are: {', '.join(sorted(names)) or 'none'}"
        ". Start it, or give the name of a running one"
    )


_PATIENCE = 60.0  # seconds for the registry to come back
_INTERVAL = 0.5


def with_locators(job: JobInfo, file: Path) -> JobInfo:
    """The job, with handles that find the new processes of roles that restart."""
    registry = job.registry.located_by(FileLocator(file))

    def found(handle: RemoteHandle) -> RemoteHandle:
        return handle.located_by(RegistryLocator(registry, handle.role))

    constructors = tuple((ranks, found(handle)) for ranks, handle in job.constructors)
    return replace(job, registry=registry, planner=found(job.planner), constructors=constructors)


@dataclass(frozen=True)
class RegistryLocator:
    """Asks the registry, which watches all roles."""

    registry: RemoteHandle
    role: str

    def locate(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.channels.Locator`."""
        born = 0 if dead is None else dead.born
        return call(self.registry, JobRegistry.locate, self.role, born)


@dataclass(frozen=True)
class FileLocator:
    """Finds the registry where its file says; see `channel_in`."""

    file: Path

    def locate(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.channels.Locator`."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                channel = channel_in(self.file)
            except ConfigurationError as error:  # the service has removed it at its end
                raise RoleGoneError from error
            asked = channel.send([message(JobRegistry.job)])
            if not asked.wait(max(deadline - time.monotonic(), 0.0)):
                break
            try:
                known: Location = asked.answer().only().registry.place.known
                return replace(known, channel=channel)
            except RoleGoneError:
                time.sleep(_INTERVAL)
        raise RoleGoneError
