"""`LoaderProcess`: a loader's process, as its parent sees it."""

from __future__ import annotations

import os
import pickle
import select
import subprocess
import sys
import time
from contextlib import suppress

from evenstep.data.pickling import pickled_by_value
from evenstep.errors import ConfigurationError, LoaderDiedError
from evenstep.processes import signal_that_killed
from evenstep.service.source_loader import LoaderJob
from evenstep.service.transport.endpoint import Endpoint, remove_socket

_MODULE = "evenstep.service.processes.loader_main"
_END_SECONDS = 5.0  # for a process that was asked to end


class LoaderProcess:
    """Started by its construction."""

    def __init__(self, job: LoaderJob) -> None:
        """
        Raises:
            ConfigurationError: the job cannot be sent.
        """
        self.name = f"Source Loader {job.number}"
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

    def endpoint(self, deadline: float) -> Endpoint:
        """Where it listens, once its sources are open.

        Args:
            deadline: on the monotonic clock.

        Raises:
            ConfigurationError: it was not ready in time, or a source cannot be opened.
            LoaderDiedError: it has ended.
        """
        stdout = self._process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            raise ConfigurationError(
                f"{self.name} (process {self.pid}) was not ready in time; raise patience=, or give "
                "it fewer sources by more loaders="
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
