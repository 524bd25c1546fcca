"""`StandbyProcesses`: processes that could play any loader at once."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from evenstep.errors import EvenstepError
from evenstep.service.processes.loader_process import LoaderProcess
from evenstep.service.source_loader import LoaderJob

_LOGGER = logging.getLogger("evenstep")
_INTERVAL = 0.5  # seconds between looks at them
_MOST_SECONDS = 60.0  # to the next attempt, where they cannot be made

_NAME = "a standby loader"


class StandbyProcesses:
    """Keeps a number of them, in a thread: one that is promoted or dies is replaced."""

    def __init__(self, jobs: Sequence[LoaderJob], count: int) -> None:
        """
        Args:
            jobs: [loaders] what each plays.
            count: how many to keep.
        """
        self._jobs, self._count = jobs, count
        self._lock = threading.Lock()
        self._processes: list[LoaderProcess] = []
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="evenstep-standbys", daemon=True)

    def begin(self) -> None:
        """Starts them. Not before all loaders are ready, which would be ready later."""
        if self._count:
            self._thread.start()

    def take(self, job: LoaderJob) -> LoaderProcess | None:
        """A process that begins to play a loader; None if there is none that is ready."""
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
