"""Finds a running job: by the file that it writes, or on a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evenstep.errors import ConfigurationError
from evenstep.service.remote.registry import JobInfo
from evenstep.service.remote.roads import RoleGoneError, SocketRoad
from evenstep.service.transport.endpoint_file import SUFFIX, path_of, read_endpoint

_RETRY_INTERVAL = 0.2  # seconds


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


def join(address: str | os.PathLike[str] | None, name: str, *, patience: float = 0.0) -> Joined:
    """
    Args:
        address: see `evenstep.service.Client`.
        patience: seconds to wait for the job to be started.

    Raises:
        ConfigurationError: there is no such job.
    """
    deadline = time.monotonic() + patience
    given = _is_file(address)
    file = Path(str(address)) if given else path_of(name)
    while given or address in (None, "auto"):
        job = job_in(file)
        if job is not None:
            return Joined(job)
        if not given:
            break
        if time.monotonic() > deadline:
            raise ConfigurationError(
                f"no service answers at {file}; start it first, or give the address that it prints"
            )
        time.sleep(_RETRY_INTERVAL)
    from evenstep.service.ray.discovery import join_cluster

    return join_cluster(None if address is None else str(address), name, deadline)


def job_in(file: Path) -> JobInfo | None:
    """The job that has written a file; None if there is no file, or the job has ended.

    Raises:
        ConfigurationError: the file is none of a service.
    """
    if not file.exists():
        return None
    pending = SocketRoad(read_endpoint(file)).send([("job", ())])
    try:
        job: JobInfo | None = pending.answer().value[0]
    except RoleGoneError:
        return None
    return job


def _is_file(address: str | os.PathLike[str] | None) -> bool:
    return isinstance(address, os.PathLike) or str(address).endswith(SUFFIX)
