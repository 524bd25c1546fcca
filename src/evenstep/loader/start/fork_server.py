"""A server that forks batchers: the trainer's handle on it, its own side, and what a batcher that
it has forked does first.

The server has a single Python thread and ends with the trainer. It is spoken to through a socket
pair, which leaves no file. For each batcher it gets an order, what to import, together with the
batcher's ends of its pipes. It imports, forks, and reports the batcher's process id and exit code.
The batcher then gets the spec from the trainer, and ends with it, too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing import process, spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.util import Finalize
from typing import Any

import torch

import evenstep.loader.batcher.process_main  # noqa: F401 - imported before the first fork
from evenstep.errors import described
from evenstep.loader.batcher.batcher_handles import LOST
from evenstep.loader.start.portable import Imports, NotPortable, Portable, difference
from evenstep.processes import end_now, is_stopped

logger = logging.getLogger("evenstep")

_LARGEST = 1 << 16  # bytes of an order
_HANDED = 5  # file descriptors with an order to start a batcher
_LOOK = 0.5  # seconds between two looks at a process that owes an answer
_PATIENCE, _LATE, _STOPPED = 240, 40, 10
"""Looks at which imports, or unpickling, have taken too long; at which that is said; and at which a
process may be stopped."""
_LAST_WORD = 5.0  # seconds for the exit code of a process that was killed
# Even while it imports, the server looks twice a second whether the trainer has gone.
_PROGRAM = """
import sys
sys.path[:] = {path!r}
import os, signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGALRM, lambda *_: os.getppid() == {trainer} or os._exit(1))
signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
from {module} import serve
serve({descriptor}, {trainer})
"""

_serving = False
"""Whether this process is a fork server or comes from one. A module that it imports may make a
loader, which must not start a server in turn."""


class ServerLostError(NotPortable):
    """The server has died, or does not answer."""


# The trainer


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
            _kill(self.pid)


class ForkServer:
    """One for all loaders of a process; see `fork_server`."""

    def __init__(self) -> None:
        # Sequenced packets: each order is received whole, with its file descriptors.
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = _PROGRAM.format(
            trainer=os.getpid(), path=sys.path, module=__name__, descriptor=theirs.fileno()
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
        self._lost = False
        Finalize(self, _end, (self._orders, self._process), exitpriority=50)

    def alive(self) -> bool:
        """False also in a child that this process forked, to which the server does not belong."""
        return self._owner == os.getpid() and not self._lost and self._process.poll() is None

    def prepare(self, imports: Imports) -> None:
        """Has the server import, without waiting for it."""
        with contextlib.suppress(OSError):  # it died, which `start` reports, or is behind
            self._order(pickle.dumps(imports), [])

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
        order = pickle.dumps(portable.imports)
        if len(order) > _LARGEST:
            raise NotPortable("it needs too many modules")
        line, their_line = multiprocessing.Pipe()
        pid = None
        with their_line:
            try:
                self._order(order, [each.fileno() for each in (their_line, *ends)])
                their_line.close()
                pid = _answer(line, self._process.pid)
                if isinstance(pid, str):
                    raise NotPortable(pid)
                served = ServedProcess(self, pid, line)
                line.send(portable)
                refusal = _answer(line, pid)
                if not self.alive():
                    raise EOFError
            except (EOFError, OSError, ServerLostError) as error:
                self._lost = True  # ends it, and what it has forked
                self._process.kill()
                line.close()  # a process that waits for its spec ends
                if isinstance(pid, int):
                    _kill(pid)
                if isinstance(error, ServerLostError):
                    raise
                raise ServerLostError("the fork server has died") from error
        if refusal is not None:
            served.kill()
            if isinstance(refusal, int):  # an exit code
                refusal = "the process that the fork server forked has died"
            raise NotPortable(refusal)
        return served

    def _order(self, order: bytes, descriptors: list[int]) -> None:
        # Without waiting: a server that is so far behind is stopped.
        socket.send_fds(self._orders, [order], descriptors, socket.MSG_DONTWAIT)


def _answer(connection: Connection, pid: int) -> Any:
    """
    Args:
        pid: the process that owes it: the server, or the one that it forked.
    """
    stopped = 0
    # Looks are counted, not seconds: this process may have been stopped, too.
    for look in range(_PATIENCE):
        if connection.poll(_LOOK):
            return connection.recv()
        stopped = stopped + 1 if is_stopped(pid) else 0
        if stopped == _STOPPED:
            break
        if look == _LATE:
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
    if _serving:
        raise NotPortable("the loader is made in a process of another loader")
    if _server is None or not _server.alive():
        try:
            _server = ForkServer()
        # Of other types where there is no interpreter, or no options, as in a frozen program.
        except (OSError, TypeError, ValueError) as error:
            raise NotPortable(f"the fork server cannot be started: {error}") from error
    return _server


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(orders: socket.socket, process: subprocess.Popen[bytes]) -> None:
    orders.close()
    process.kill()  # it may be importing; what it forked ends with it
    process.wait()


# The server


def serve(descriptor: int, trainer: int) -> None:
    """Runs the server until the trainer has gone.

    Args:
        descriptor: of the socket that orders come from.
        trainer: its process id.
    """
    global _serving
    _serving = True
    # The program that this process runs has set the timer.
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == trainer else end_now())
    started: dict[int, tuple[Any, Connection]] = {}
    """By sentinel: processes, and the pipes to the trainer for their exit codes."""
    imported: dict[bytes, str | None] = {}
    """By order: why it could not be imported."""
    with socket.socket(fileno=descriptor) as orders:
        while True:
            for ready in wait([orders, *started]):
                if isinstance(ready, int):
                    _report(*started.pop(ready))
                    continue
                order = b""
                with contextlib.suppress(ConnectionResetError):  # the trainer left without reading
                    order, descriptors, _, _ = socket.recv_fds(orders, _LARGEST, _HANDED)
                if not order:
                    end_now()
                if order not in imported:
                    imported[order] = _import(pickle.loads(order))
                    gc.freeze()  # a collection in a child would write to, and so copy, all of it
                if descriptors:
                    _start(descriptors, imported[order], orders, started)


def _report(ended: Any, line: Connection) -> None:
    ended.kill()  # it may have closed the sentinel itself
    ended.join()
    with contextlib.suppress(OSError), line:  # the trainer has closed its end
        line.send(ended.exitcode)


def _start(
    descriptors: list[int], refusal: str | None, orders: socket.socket, started: dict[int, Any]
) -> None:
    line, ends = Connection(descriptors[0]), [Connection(each) for each in descriptors[1:]]
    inherited = [orders, *(other for _, other in started.values())]
    batcher: Any = multiprocessing.get_context("fork").Process(
        target=_become, args=(inherited, line, ends), name="evenstep-batcher"
    )
    with contextlib.ExitStack() as stack:
        for end in ends:
            stack.enter_context(end)
        try:
            if refusal is None:
                batcher.start()
                started[batcher.sentinel] = (batcher, line)
        except OSError as error:
            refusal = f"the fork server cannot fork: {error}"
        with contextlib.suppress(OSError):  # the trainer no longer waits
            line.send(refusal or batcher.pid)


def _import(imports: Imports) -> str | None:
    """Imports; returns why that failed."""
    try:
        spawn.prepare(imports.preparation)
        for module in imports.modules:
            importlib.import_module(module)
    except BaseException as error:  # a script may also exit
        return f"what it needs cannot be imported: {described(error)}"
    if threading.active_count() > 1:
        names = [t.name for t in threading.enumerate() if t is not threading.current_thread()]
        return f"an import that it needs starts a thread ({', '.join(names)})"
    return None


# The batcher


def _become(inherited: list[Any], line: Connection, ends: list[Connection]) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for connection in inherited:  # else nobody would notice that the server has died
        connection.close()
    try:
        run, spec = _unpack(line.recv())
    except EOFError:
        return  # the trainer has gone
    except BaseException as error:
        line.send(described(error))
        return
    line.send(None)
    line.close()
    run(spec, *ends)


def _unpack(portable: Portable) -> tuple[Callable[..., None], Any]:
    """
    Raises:
        LookupError: a global is not what it is in the trainer.
        BaseException: anything that the dataset raises as it is unpickled.
    """
    spawn.prepare(portable.imports.preparation)
    process.current_process().authkey = portable.authkey
    os.environ.clear()
    os.environ.update(portable.environ)
    torch.set_default_dtype(portable.default_dtype)
    if (name := difference(portable.globals)) is not None:
        raise LookupError(f"{name} was changed since its module was imported")
    run, spec = pickle.loads(portable.pickle)
    return run, spec
