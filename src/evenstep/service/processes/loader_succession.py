"""`LoaderSuccession`: the process of a loader, and the next one when it dies."""

from __future__ import annotations

import socket
import threading
from typing import Any

from evenstep.errors import LoaderDiedError
from evenstep.service.processes.loader_process import LoaderProcess
from evenstep.service.processes.standbys import StandbyProcesses
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.roads import RoleGoneError, SocketRoad
from evenstep.service.remote.role_place import ATTEMPTS, Location, RolePlace
from evenstep.service.source_loader import LoaderJob


class LoaderSuccession:
    """The `Finder` of the loader's place."""

    def __init__(self, job: LoaderJob, patience: float, standbys: StandbyProcesses) -> None:
        """
        Args:
            patience: seconds within which a process must have opened its sources.
            standbys: one of which follows a process that has died, if any is ready.

        Raises:
            ConfigurationError: the job cannot be sent.
        """
        self.job, self._patience, self._standbys = job, patience, standbys
        self._lock = threading.Lock()
        self._closed = False
        self._process = LoaderProcess.playing(job)
        self.name = self._process.name
        self._handle: RemoteHandle | None = None

    def find(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Finder`."""
        if dead is None:
            return self._located()
        for attempt in range(1, ATTEMPTS + 1):
            with self._lock:
                if self._closed:
                    raise RoleGoneError
                if self._process.has_ended():
                    self._process.end()
                    self._process = self._next()
            try:
                return self._located()
            except LoaderDiedError:  # again, before it was ready
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def _next(self) -> LoaderProcess:
        return self._standbys.take(self.job) or LoaderProcess.playing(self.job)

    def _located(self) -> Location:
        process = self._process
        road = SocketRoad(process.endpoint(self._patience))
        here = socket.gethostname()
        return Location(road, process.pid, here, process.born, process.promoted)

    def kill(self) -> None:
        """Kills the process, which hangs; the next one follows it as one that died."""
        self._process.kill()

    def handle(self) -> RemoteHandle:
        """The loader, once its sources are open; see `LoaderProcess.endpoint`."""
        if self._handle is None:
            self._handle = RemoteHandle(RolePlace(self.name, self.find(None), self))
        return self._handle

    def ask_to_end(self) -> None:
        """Starts none any more. Idempotent."""
        with self._lock:
            self._closed = True
            self._process.ask_to_end()

    def end(self) -> None:
        """See `LoaderProcess.end`. Connections of this process are closed, too."""
        self.ask_to_end()
        self._process.end()
        if self._handle is not None and self._handle.place.known is not None:
            self._handle.place.known.road.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _nobody, ()  # other processes have no use for a loader, and cannot start one


def _nobody() -> None:
    return None
