"""`LoaderProcess`: a loader's process, or a standby's, as its parent sees it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from evenstep.data.pickling import pickled_by_value
from evenstep.errors import ConfigurationError, LoaderDiedError
from evenstep.processes import signal_that_killed
from evenstep.service.job.loader_job import LoaderJob
from evenstep.service.transport.endpoint import Endpoint, remove_socket

_MODULE = "evenstep.service.backends.processes.loader_main"
_END_SECONDS = 5.0  # for a process that was asked to end
_EXIT_SECONDS = 1.0  # for one that has closed its connections
_PROMPT_SECONDS = 1.0  # in which a standby confirms that it takes over


class LoaderProcess:
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
        self._endpoint: Endpoint | None = None
        paths = [os.path.abspath(path) for path in sys.path]
        self._connection, its_end = multiprocessing.Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, str(its_end.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[its_end.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        its_end.close()
        self._send((list(map(_sent, jobs)), paths, standby))

    @classmethod
    def playing(cls, job: LoaderJob) -> LoaderProcess:
        """A process that runs a loader as soon as it can."""
        return cls([job], job.role)

    @property
    def pid(self) -> int:
        return self._process.pid

    def has_ended(self) -> bool:
        """Whether it has ended. Its connections may close a moment before."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        return self._process.returncode is not None

    def check_ready(self) -> None:
        """Notes whether a standby is ready.

        Raises:
            EvenstepError: it could not read its jobs.
            LoaderDiedError: it has ended.
        """
        if self._connection.poll():
            self._answer(0.0)
            self.ready = True
        elif self._process.poll() is not None:
            raise self._death()

    def promote(self, job: LoaderJob) -> bool:
        """Lets a standby that is ready run a loader. Returns whether it does."""
        self._send(_sent(job))
        try:
            self._answer(_PROMPT_SECONDS)
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
            self._endpoint = self._answer(patience)
        return self._endpoint

    def _answer(self, patience: float) -> Any:
        """What it says next."""
        if not self._connection.poll(patience):
            raise ConfigurationError(
                f"{self.name} (process {self.pid}) was not ready within {patience:g} seconds; "
                "raise patience=, or give it fewer sources by more loaders="
            )
        try:
            answer = pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._death() from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _death(self) -> LoaderDiedError:
        return LoaderDiedError(
            f"{self.name} (process {self.pid}) ended{signal_that_killed(self.pid)} before it "
            "was ready; see what it has written to standard error"
        )

    def _send(self, what: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # what is asked next says why
            self._connection.send_bytes(pickle.dumps(what))

    def ask_to_end(self) -> None:
        """Idempotent."""
        self._connection.close()

    def end(self) -> None:
        """Waits for its end, and kills it if it does not end by itself. Idempotent."""
        self.ask_to_end()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        if self._endpoint is not None:
            remove_socket(self._endpoint)

    def kill(self) -> None:
        """Ends it at once, whatever it does."""
        self.ask_to_end()
        self._process.kill()
        self._process.wait()


def _sent(job: LoaderJob) -> bytes:
    return pickled_by_value(f"what {job.role} reads", job)
