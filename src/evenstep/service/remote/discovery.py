"""A running job that a process takes part in, found by the file that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from evenstep.service.remote.job_info import JobInfo
from evenstep.service.remote.roads import RoleGoneError, SocketRoad
from evenstep.service.transport.endpoint_file import read_endpoint


@dataclass
class Joined:
    """A job that this process takes part in."""

    job: JobInfo
    _disconnect: Callable[[], None] | None = None

    def leave(self) -> None:
        """Idempotent."""
        disconnect, self._disconnect = self._disconnect, None
        if disconnect is not None:
            disconnect()


def road_in(file: Path) -> SocketRoad:
    """To the registry that has written a file, or to one that is made again on its host: that takes
    the same port, and another socket.

    Raises:
        ConfigurationError: there is no file, or it is none of a service.
    """
    endpoint = read_endpoint(file)
    return SocketRoad(replace(endpoint, machine="") if endpoint.tcp else endpoint)


def job_in(file: Path) -> JobInfo | None:
    """The job that has written a file; None if there is no file, or the job has ended.

    Raises:
        ConfigurationError: the file is none of a service.
    """
    if not file.exists():
        return None
    pending = road_in(file).send([("job", ())])
    try:
        answer = pending.answer()
    except RoleGoneError:
        return None
    if answer.error is not None:
        raise answer.error
    job: JobInfo | None = answer.value[0]
    return job
