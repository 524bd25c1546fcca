"""`LoaderProcess`: a loader's process, as its parent sees it; and `LoaderProcesses`, one after
another."""

from __future__ import annotations

import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from evenstep.data.pickling import pickled_by_value
from evenstep.errors import ConfigurationError, LoaderDiedError
from evenstep.processes import signal_that_killed
from evenstep.service.remote.roads import RoleGoneError, SocketRoad
from evenstep.service.remote.role_place import ATTEMPTS, Location
from evenstep.service.source_loader import LoaderJob
from evenstep.service.transport.endpoint import Endpoint, remove_socket

_MODULE = "evenstep.service.processes.loader_main"
_END_SECONDS = 5.0  # for a process that was asked to end
_EXIT_SECONDS = 1.0  # for one that has closed its connections


class LoaderProcess:
    """Started by its construction."""

    def __init__(self, job: LoaderJob) -> None:
        """
        Raises:
            ConfigurationError: the job cannot be sent.
        """
        self.name = f"Source Loader {job.number}"
        self.born = time.time_ns()
        self._endpoint: Endpoint | None = None
        sent = pickled_by_value(f"what {self.name} reads", job)
        paths = [os.path.abspath(path) for path in sys.path]
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `endpoint` says why
            pickle.dump((sent, paths), self._process.stdin)
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it has. Its connections may close a moment before it ends."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        return self._process.returncode is not None

    def endpoint(self, patience: float) -> Endpoint:
        """Where it listens, once its sources are open.

        Args:
            patience: seconds.

        Raises:
            ConfigurationError: it was not ready in time, or a source cannot be opened.
            LoaderDiedError: it has ended.
        """
        if self._endpoint is not None:
            return self._endpoint
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], patience)[0]:
            raise ConfigurationError(
                f"{self.name} (process {self.pid}) was not ready within {patience:g} seconds; "
                "raise patience=, or give it fewer sources by more loaders="
            )
        try:
            answer = pickle.load(stdout)
        except EOFError as error:
            raise LoaderDiedError(
                f"{self.name} (process {self.pid}) ended{signal_that_killed(self.pid)} before it "
                "was ready; see what it has written to standard error"
            ) from error
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Endpoint)
        self._endpoint = answer
        return answer

    def ask_to_end(self) -> None:
        """Idempotent."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self) -> None:
        """Waits for its end, and kills it if it does not end by itself. Idempotent."""
        self.ask_to_end()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        if self._endpoint is not None:
            remove_socket(self._endpoint)


class LoaderProcesses:
    """The process of a loader, and the next one if it dies: the `Finder` of the loader's place."""

    def __init__(self, job: LoaderJob, patience: float) -> None:
        """
        Args:
            patience: seconds within which a process must have opened its sources.

        Raises:
            ConfigurationError: the job cannot be sent.
        """
        self._job, self._patience = job, patience
        self._lock = threading.Lock()
        self._closed = False
        self._process = LoaderProcess(job)
        self.name = self._process.name

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
                    self._process = LoaderProcess(self._job)
            try:
                return self._located()
            except LoaderDiedError:  # again, before it was ready
                if attempt == ATTEMPTS:
                    raise
        raise AssertionError

    def _located(self) -> Location:
        process = self._process
        road = SocketRoad(process.endpoint(self._patience))
        return Location(road, process.pid, socket.gethostname(), process.born)

    def ask_to_end(self) -> None:
        """Starts none any more. Idempotent."""
        with self._lock:
            self._closed = True
            self._process.ask_to_end()

    def end(self) -> None:
        """See `LoaderProcess.end`."""
        self.ask_to_end()
        self._process.end()

    def __reduce__(self) -> tuple[Any, ...]:
        return _nobody, ()  # other processes have no use for a loader, and cannot start one


def _nobody() -> None:
    return None
