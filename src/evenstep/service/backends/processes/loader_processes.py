"""The processes of loaders, as their parent sees them.

`LoaderProcess` is one, of a loader or a standby; `LoaderSuccession` a loader's process and its
replacements; `StandbyProcesses` those that may replace any.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from evenstep.data.pickling import pickled
from evenstep.errors import ConfigurationError, EvenstepError, LoaderDiedError
from evenstep.processes import signal_that_killed
from evenstep.service.job.source_layout import LoaderJob
from evenstep.service.remote.channels import (
    ATTEMPTS,
    Location,
    RoleGoneError,
    RolePlace,
    SocketChannel,
)
from evenstep.service.remote.child_process import ChildProcess
from evenstep.service.remote.handles import RemoteHandle
from evenstep.service.transport.endpoint import Endpoint, remove_socket

_MODULE = "evenstep.service.backends.processes.loader_main"
_END_SECONDS = 5.0  # for a process that was asked to end
_EXIT_SECONDS = 1.0  # for one that has closed its connections
_PROMPT_SECONDS = 1.0  # in which a standby confirms that it takes over


class LoaderProcess(ChildProcess):
    """Started by its construction."""

    def __init__(self, jobs: Sequence[LoaderJob], name: str, *, standby: bool = False) -> None:
        """
        Args:
            jobs: the one that it runs; or, for a standby, those that it may have to run.
            name: for messages.

        Raises:
            ConfigurationError: a job cannot be sent.
        """
        self.name = name
        self.born = time.time_ns()
        self.ready = self.promoted = False
        """For a standby: whether it could take over at once, and whether it has."""
        self.opened = 0
        """For a standby: sources that it has open."""
        self._endpoint: Endpoint | None = None
        super().__init__(_MODULE, (list(map(_sent, jobs)), standby))

    def has_ended(self) -> bool:
        """Whether it has ended. Its connections may close a moment before."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        return self.process.returncode is not None

    def check_ready(self) -> None:
        """Notes whether a standby is ready.

        Raises:
            EvenstepError: it could not read its jobs.
            LoaderDiedError: it has ended.
        """
        if self.connection.poll():
            self.opened = self.answer(0.0)
            self.ready = True
        elif self.process.poll() is not None:
            raise self._death()

    def promote(self, job: LoaderJob) -> bool:
        """Lets a standby that is ready run a loader. Returns whether it does."""
        self.send(_sent(job))
        try:
            self.answer(_PROMPT_SECONDS)
        except (ConfigurationError, LoaderDiedError):  # it is stopped, or has died
            return False
        self.name, self.promoted = job.role, True
        return True

    def endpoint(self, patience: float) -> Endpoint:
        """Where it listens, once its sources are open.

        Args:
            patience: seconds.

        Raises:
            ConfigurationError: it was not ready in time, or a source cannot be opened.
            LoaderDiedError: it has ended.
        """
        if self._endpoint is None:
            self._endpoint = self.answer(patience)
        return self._endpoint

    def answer(self, seconds: float) -> Any:
        """What it says next; raises as `endpoint`."""
        try:
            return super().answer(seconds)
        except TimeoutError as error:
            raise ConfigurationError(
                f"{self.name} (process {self.pid}) was not ready within {seconds:g} seconds; "
                "raise patience=, or give it fewer sources by more loaders="
            ) from error
        except EOFError as error:
            raise self._death() from error

    def _death(self) -> LoaderDiedError:
        return LoaderDiedError(
            f"{self.name} (process {self.pid}) ended{signal_that_killed(self.pid)} before it "
            "was ready; see what it has written to standard error"
        )

    def ask_to_end(self) -> None:
        """Idempotent."""
        self.connection.close()

    def end(self) -> None:
        """Waits for its end, and kills it if it does not end by itself. Idempotent."""
        self.ask_to_end()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._endpoint is not None:
            remove_socket(self._endpoint)


def _sent(job: LoaderJob) -> bytes:
    return pickled(f"what {job.role} reads", job)


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
        """JSON-able: those that are there, whether they are ready, and the sources they have
        open."""
        host = {"host": socket.gethostname()}
        with self._lock:
            return [
                {"process": each.pid, **host, "ready": each.ready, "opened": each.opened}
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
        self._process, self.name = LoaderProcess([job], job.role), job.role
        self._handle: RemoteHandle | None = None

    def locate(self, dead: Location | None) -> Location:
        """See `evenstep.service.remote.channels.Locator`."""
        if dead is None:
            return self._located()
        for attempt in range(1, ATTEMPTS + 1):
            with self._lock:
                if self._closed:
                    raise RoleGoneError
                if self._process.has_ended():
                    self._process.end()
                    again = self._standbys.take(self.job)
                    self._process = again or LoaderProcess([self.job], self.name)
            try:
                return self._located()
            except LoaderDiedError:  # again, before it was ready
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

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
