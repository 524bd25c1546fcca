"""`ChildProcess`: a process of this machine that runs a module of evenstep, and a pipe to it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from evenstep.processes import module_command
from evenstep.service.remote.role_host import sendable


class ChildProcess:
    """Started by its construction."""

    def __init__(self, module: str, given: Any, **environment: str) -> None:
        """
        Args:
            given: what it is sent first, with the paths where this process finds modules.
            environment: more variables.
        """
        paths = [os.path.abspath(path) for path in sys.path]
        self.connection, its_end = multiprocessing.Pipe()
        self.process = subprocess.Popen(
            module_command(module, str(its_end.fileno())),
            stdin=subprocess.DEVNULL,
            pass_fds=[its_end.fileno()],
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(paths)},
        )
        its_end.close()
        self.send((given, paths))

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, what: Any) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # what is asked next says why
            self.connection.send_bytes(pickle.dumps(what))

    def answer(self, seconds: float) -> Any:
        """What it says next.

        Raises:
            TimeoutError: it says nothing for so long.
            EOFError: it has ended.
            Exception: what it has sent.
        """
        if not self.connection.poll(seconds):
            raise TimeoutError
        try:
            answer = pickle.loads(self.connection.recv_bytes())
        except OSError as error:
            raise EOFError from error
        if isinstance(answer, Exception):
            raise answer
        return answer

    def kill(self) -> None:
        """Ends it at once, whatever it does."""
        self.connection.close()
        self.process.kill()
        self.process.wait()


def connection_to_parent() -> Connection:
    """In the process. From now on, what users' functions print goes to standard error."""
    os.dup2(2, 1)
    return Connection(int(sys.argv[1]))


def tell(parent: Connection, value: Any) -> None:
    """In the process."""
    parent.send_bytes(pickle.dumps(sendable(value) if isinstance(value, BaseException) else value))
