"""The trainer's handle on its fork server, and on the batchers that this has started.

The server ends with the trainer. It is spoken to through a socket pair, which leaves no file.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from multiprocessing import spawn
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

from evenstep.loader.batcher.process import LOST
from evenstep.loader.start import served
from evenstep.loader.start.limited_pickle import NotPortable
from evenstep.loader.start.portable import Imports, Portable

logger = logging.getLogger("evenstep")

_PATIENCE = 120.0  # seconds for imports, and again for unpickling
_LAST_WORD = 5.0  # seconds for the exit code of a process that was killed
# Even while it imports, the server looks twice a second whether the trainer has gone.
_PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *_: os.getppid() == {trainer} or os._exit(1))
signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
sys.path[:] = {path!r}
from {module} import serve
serve({descriptor}, {trainer})
"""


class ServedProcess:
    """What the server forked. As `multiprocessing.Process`, where that is needed."""

    def __init__(self, server: ForkServer, pid: int, exits: Connection) -> None:
        self._server = server  # keeps it alive: it ends with its last reference
        self.pid = pid
        self._exits = exits
        self._lock = threading.Lock()
        self._code: int | None = None

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process has ended."""
        return self._exits.fileno()

    @property
    def exitcode(self) -> int | None:
        with self._lock:
            if self._code is None and self._exits.poll():
                try:
                    self._code = self._exits.recv()
                except (EOFError, OSError):
                    self._code = LOST
            return self._code

    def is_alive(self) -> bool:
        return self.exitcode is None

    def join(self, timeout: float = _LAST_WORD) -> None:
        """Waits until it has ended. The wait has a limit, because a stopped server reports
        nothing."""
        if self.is_alive():
            self._exits.poll(timeout)

    def kill(self) -> None:
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


class ForkServer:
    """One for all loaders of a process; see `fork_server`."""

    def __init__(self) -> None:
        # Sequenced packets: each order is received whole, with its file descriptors.
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = _PROGRAM.format(
            trainer=os.getpid(),
            path=sys.path,
            module=served.__name__,
            descriptor=theirs.fileno(),
        )
        # Of a process that multiprocessing spawns, for its interpreter and options.
        command = spawn.get_command_line()
        with theirs:
            self._process = subprocess.Popen(
                [*command[: command.index("-c")], "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        self._owner = os.getpid()
        Finalize(self, _end, (self._orders, self._process), exitpriority=50)

    def alive(self) -> bool:
        """False also in a child that this process forked, to which the server does not belong."""
        return self._owner == os.getpid() and self._process.poll() is None

    def prepare(self, imports: Imports) -> None:
        """Has the server import, without waiting for it."""
        with contextlib.suppress(OSError):  # it died, which `start` reports, or is behind
            self._orders.send(pickle.dumps(imports), socket.MSG_DONTWAIT)

    def start(self, portable: Portable, ends: Sequence[Connection]) -> ServedProcess:
        """
        Args:
            portable: (function, its first argument): see `StartChoice`.
            ends: the function's other arguments.

        Raises:
            NotPortable: the server, or the process that it forked, does not get as far as to call
                the function.
        """
        line, their_line = multiprocessing.Pipe()
        handed = [their_line, *ends]
        with their_line:
            order = pickle.dumps(portable.imports)
            if len(order) > served.LARGEST:
                raise NotPortable("it needs too many modules")
            try:
                descriptors = [connection.fileno() for connection in handed]
                socket.send_fds(self._orders, [order], descriptors)
                their_line.close()
                pid = self._answer(line)
                if isinstance(pid, str):
                    raise NotPortable(pid)
                line.send(portable)
                refusal = self._answer(line)
            except (EOFError, OSError) as error:
                raise NotPortable("the fork server has died") from error
        process = ServedProcess(self, pid, line)
        if refusal is not None:
            process.kill()
            if isinstance(refusal, int):  # an exit code
                refusal = "the process that the fork server forked has died"
            raise NotPortable(refusal)
        return process

    def _answer(self, connection: Connection) -> Any:
        if not connection.poll(_PATIENCE / 6):
            logger.warning("waits for evenstep's fork server, which still imports or unpickles")
        if not connection.poll(_PATIENCE):
            self._process.kill()  # what it forked ends with it
            raise NotPortable(f"the fork server was not ready after {_PATIENCE:.0f} seconds")
        return connection.recv()


_server: ForkServer | None = None


def fork_server() -> ForkServer:
    """This process's server, started if there is none.

    Raises:
        NotPortable: it cannot be started, or this process belongs to one.
    """
    global _server
    if served.serving:
        raise NotPortable("the loader is made in a process of another loader")
    if _server is None or not _server.alive():
        try:
            _server = ForkServer()
        # Of other types where there is no interpreter, or no options, as in a frozen program.
        except (OSError, TypeError, ValueError) as error:
            raise NotPortable(f"the fork server cannot be started: {error}") from error
    return _server


def _end(orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    orders.close()
    process.kill()  # it may be importing; what it forked ends with it
    process.wait()
