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
from evenstep.processes import is_stopped

logger = logging.getLogger("evenstep")

_PATIENCE = 120.0  # seconds for imports, and again for unpickling
_PROMPT = 20.0  # seconds for a fork, once the imports are done
_LOOK = 0.5  # seconds between two looks at a process that owes an answer
_STOPPED = 10  # looks at which it may be stopped
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


class ServerLostError(NotPortable):
    """The server has died, or does not answer."""


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
        self._orders_sent = self._orders_followed = 0
        self._lost = False
        Finalize(self, _end, (self._orders, self._process), exitpriority=50)

    def alive(self) -> bool:
        """False also in a child that this process forked, to which the server does not belong."""
        return self._owner == os.getpid() and not self._lost and self._process.poll() is None

    def prepare(self, imports: Imports) -> None:
        """Has the server import, without waiting for it."""
        with contextlib.suppress(OSError):  # it died, which `start` reports, or is behind
            self._order(pickle.dumps(imports), [])

    def _order(self, order: bytes, descriptors: list[int]) -> None:
        # Without waiting: a server that is so far behind is stopped.
        socket.send_fds(self._orders, [order], descriptors, socket.MSG_DONTWAIT)
        self._orders_sent += 1

    def _imports(self) -> bool:
        """Whether it has still to import what it was told to."""
        with contextlib.suppress(OSError):
            while self._orders.recv(1, socket.MSG_DONTWAIT):
                self._orders_followed += 1
        return self._orders_followed < self._orders_sent

    def start(self, portable: Portable, ends: Sequence[Connection]) -> ServedProcess:
        """
        Args:
            portable: (function, its first argument): see `StartChoice`.
            ends: the function's other arguments.

        Raises:
            ServerLostError: another server may do it.
            NotPortable: the server, or the process that it forked, does not get as far as to call
                the function.
        """
        line, their_line = multiprocessing.Pipe()
        handed = [their_line, *ends]
        with their_line:
            order = pickle.dumps(portable.imports)
            if len(order) > served.LARGEST:
                raise NotPortable("it needs too many modules")
            pid = None
            try:
                self._order(order, [connection.fileno() for connection in handed])
                their_line.close()
                pid = self._answer(line, self._process.pid)
                if isinstance(pid, str):
                    raise NotPortable(pid)
                process = ServedProcess(self, pid, line)
                line.send(portable)
                refusal = self._answer(line, pid)
                if not self.alive():
                    raise EOFError
            except (EOFError, OSError, ServerLostError) as error:
                self._give_up(line, pid)
                if isinstance(error, ServerLostError):
                    raise
                raise ServerLostError("the fork server has died") from error
        if refusal is not None:
            process.kill()
            if isinstance(refusal, int):  # an exit code
                refusal = "the process that the fork server forked has died"
            raise NotPortable(refusal)
        return process

    def _give_up(self, line: Connection, forked: Any) -> None:
        """Ends the server, and what it has forked."""
        self._lost = True
        self._process.kill()
        line.close()  # a process that waits for its spec ends
        if isinstance(forked, int):
            with contextlib.suppress(ProcessLookupError):
                os.kill(forked, signal.SIGKILL)

    def _answer(self, connection: Connection, pid: int) -> Any:
        """
        Args:
            pid: the process that owes it: this server, or the one that it forked.
        """
        stopped, prompt = 0, _PROMPT
        # Looks are counted, not seconds: this process may have been stopped, too.
        for look in range(1, int(_PATIENCE / _LOOK) + 1):
            if connection.poll(_LOOK):
                return connection.recv()
            works = pid != self._process.pid or self._imports()
            prompt = _PROMPT if works else prompt - _LOOK
            stopped = stopped + 1 if is_stopped(pid) else 0
            if stopped == _STOPPED or prompt <= 0:
                break
            if look * _LOOK == _PROMPT:
                logger.warning("waits for evenstep's fork server, which still imports or unpickles")
        how = "is stopped" if stopped else "does not answer"
        raise ServerLostError(f"the fork server, or the process that it forked, {how}")


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
