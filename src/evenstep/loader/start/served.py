"""The fork server's own side, and what runs in a batcher that it has forked.

The server has a single Python thread. For each batcher it gets an order, what to import, together
with the batcher's ends of its pipes. It imports, forks, and reports the batcher's process id and
exit code. The batcher then gets the spec from the trainer. Both end with the trainer.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import multiprocessing
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from multiprocessing import process, spawn
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

import evenstep.loader.batcher.process_main  # noqa: F401 - imported before the first fork
from evenstep.errors import described
from evenstep.loader.start.portable import Imports, Portable, difference
from evenstep.processes import end_now

LARGEST = 1 << 16  # bytes of an order
HANDED = 5  # file descriptors with an order to start a batcher

serving = False
"""Whether this process is the fork server or comes from it. A module that it imports may make a
loader, which must not start a server in turn."""


def serve(descriptor: int, trainer: int) -> None:
    """Runs the server until the trainer has gone.

    Args:
        descriptor: of the socket that orders come from.
        trainer: its process id.
    """
    global serving
    serving = True
    # The program that this process runs has set the timer.
    signal.signal(signal.SIGALRM, lambda *_: None if os.getppid() == trainer else end_now())
    with socket.socket(fileno=descriptor) as orders:
        _Server(orders).run()
    end_now()


class _Server:
    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._started: dict[int, tuple[Any, Connection]] = {}
        """By sentinel: processes, and the pipes to the trainer for their exit codes."""
        self._imported: dict[bytes, str | None] = {}
        """By order: why it could not be imported."""

    def run(self) -> None:
        while True:
            for ready in wait([self._orders, *self._started]):
                if isinstance(ready, int):
                    self._report(*self._started.pop(ready))
                elif not self._obey():
                    return

    def _report(self, ended: Any, line: Connection) -> None:
        ended.kill()  # it may have closed the sentinel itself
        ended.join()
        with contextlib.suppress(OSError), line:  # the trainer has closed its end
            line.send(ended.exitcode)

    def _obey(self) -> bool:
        """Follows an order; False if there will be no more."""
        order = b""
        with contextlib.suppress(ConnectionResetError):  # the trainer has gone without reading all
            order, descriptors, _, _ = socket.recv_fds(self._orders, LARGEST, HANDED)
        if not order:
            return False
        if order not in self._imported:
            self._imported[order] = _import(pickle.loads(order))
            gc.freeze()  # a collection in a child would write to, and so copy, all these objects
        with contextlib.suppress(OSError):  # the trainer has closed its end, or reads none
            self._orders.send(b"+", socket.MSG_DONTWAIT)
        if descriptors:
            self._start(descriptors, self._imported[order])
        return True

    def _start(self, descriptors: list[int], refusal: str | None) -> None:
        line, ends = Connection(descriptors[0]), [Connection(each) for each in descriptors[1:]]
        inherited = [self._orders, *(other for _, other in self._started.values())]
        batcher: Any = multiprocessing.get_context("fork").Process(
            target=_become, args=(inherited, line, ends), name="evenstep-batcher"
        )
        with contextlib.ExitStack() as stack:
            for end in ends:
                stack.enter_context(end)
            try:
                if refusal is None:
                    batcher.start()
                    self._started[batcher.sentinel] = (batcher, line)
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
