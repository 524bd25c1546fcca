"""`LoaderSuccession`: a loader's process and its replacements. `StandbyProcesses`: processes that
can run any loader at once."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from evenstep.errors import EvenstepError, LoaderDiedError
from evenstep.service.backends.processes.loader_process import LoaderProcess
from evenstep.service.job.loader_job import LoaderJob
from evenstep.service.remote.channels import RoleGoneError, SocketChannel
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.remote.role_place import ATTEMPTS, Location, RolePlace

_LOGGER = logging.getLogger("evenstep")
_INTERVAL = 0.5  # seconds between looks at them
_MOST_SECONDS = 60.0  # to the next attempt, where they cannot be made

_NAME = "a standby loader"


class StandbyProcesses:
    """Keeps a number of them, in a thread. One that takes over a loader or dies is replaced."""

    def __init__(self, jobs: Sequence[LoaderJob], count: int) -> None:
        """
        Args:
            jobs: [loaders] what each runs.
            count: how many to keep.
        """
        self._jobs, self._count = jobs, count
        self._lock = threading.Lock()
        self._processes: list[LoaderProcess] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="evenstep-standbys", daemon=True)

    def begin(self) -> None:
        """Starts them. To be called when all loaders are ready, which they would slow down."""
        if self._count:
            self._thread.start()

    def take(self, job: LoaderJob) -> LoaderProcess | None:
        """A process that takes over a loader; None if none is ready."""
        while True:
            with self._lock:
                ready = [each for each in self._processes if each.ready]
                if not ready:
                    return None
                self._processes.remove(ready[0])
            if ready[0].promote(job):
                return ready[0]
            ready[0].kill()

    def status(self) -> list[dict[str, Any]]:
        """JSON-able: those that are there, and whether they are ready."""
        with self._lock:
            return [
                {"process": each.pid, "host": socket.gethostname(), "ready": each.ready}
                for each in self._processes
            ]

    def close(self) -> None:
        """Ends them. Idempotent."""
        self._closed.set()
        if self._thread.ident is not None:
            self._thread.join()
        for process in self._processes:
            process.ask_to_end()
        for process in self._processes:
            process.end()
        self._processes.clear()

    def _keep(self) -> None:
        pause, begin_at = 0.0, 0.0
        while not self._closed.wait(_INTERVAL):
            for process in list(self._processes):
                try:
                    with self._lock:
                        if process in self._processes:
                            process.check_ready()
                except EvenstepError as error:
                    _LOGGER.warning("%s is replaced: %s", _NAME, error)
                    pause = 0.0 if process.ready else min(2 * pause + 1, _MOST_SECONDS)
                    begin_at = time.monotonic() + pause
                    self._drop(process)
            while len(self._processes) < self._count and time.monotonic() >= begin_at:
                process = LoaderProcess(self._jobs, _NAME, standby=True)
                with self._lock:
                    self._processes.append(process)

    def _drop(self, process: LoaderProcess) -> None:
        with self._lock:
            self._processes.remove(process)
        process.kill()


class LoaderSuccession:
    """The `Locator` of the loader's place."""

    def __init__(self, job: LoaderJob, patience: float, standbys: StandbyProcesses) -> None:
        """
        Args:
            patience: seconds within which a process must have opened its sources.
            standbys: one of which replaces a process that has died, if any is ready.

        Raises:
            ConfigurationError: the job cannot be sent.
        """
        self.job, self._patience, self._standbys = job, patience, standbys
        self._lock = threading.Lock()
        self._closed = False
        self._process = LoaderProcess.playing(job)
        self.name = self._process.name
        self._handle: RemoteHandle | None = None

    def locate(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.role_place.Locator`."""
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
        channel = SocketChannel(process.endpoint(self._patience))
        here = socket.gethostname()
        return Location(channel, process.pid, here, process.born, process.promoted)

    def kill(self) -> None:
        """Kills the process, which hangs; it is replaced like one that died."""
        self._process.kill()

    def handle(self) -> RemoteHandle:
        """The loader, once its sources are open; see `LoaderProcess.endpoint`."""
        if self._handle is None:
            self._handle = RemoteHandle(RolePlace(self.name, self.locate(None), self))
        return self._handle

    def ask_to_end(self) -> None:
        """Starts no more processes. Idempotent."""
        with self._lock:
            self._closed = True
            self._process.ask_to_end()

    def end(self) -> None:
        """See `LoaderProcess.end`. Connections of this process are closed, too."""
        self.ask_to_end()
        self._process.end()
        if self._handle is not None:
            self._handle.place.disconnect()

    def __reduce__(self) -> tuple[Any, ...]:
        return _nobody, ()  # other processes cannot start a loader


def _nobody() -> None:
    return None
