"""Makes a process end when its parent ends, even if the parent is killed.

The operating system does not tell a process that its parent was killed, so the process watches its
parent. Without that, a worker would notice late, or never while it is blocked on a full pipe. As
long as it lives, it holds copies of its parent's pipes open, and readers of these pipes wait.

Children are killed with SIGKILL: a child that is stopped, or that handles SIGTERM, would not end
otherwise, and multiprocessing waits for all children before a process exits.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import NoReturn

from evenstep.errors import LoaderDiedError, described

_CHECK_INTERVAL = 0.5  # seconds between checks of the parent
_EXIT_SECONDS = 5.0  # to wait for a process that is exiting


def module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of evenstep in another process. Unlike ``python -m``, it takes
    no module from the working directory, which may be anybody's."""
    program = (
        "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
        f"runpy.run_module({module!r}, run_name='__main__')"
    )
    return [sys.executable, "-c", program, *arguments]


def end_with_parent() -> None:
    """Makes this process end within a second of its parent, and kill its children whenever it
    ends."""
    Finalize(None, kill_children, exitpriority=100)  # before multiprocessing waits for them
    threading.Thread(target=_watch, name="evenstep-watch", daemon=True).start()


def kill_children() -> None:
    """Kills all children that multiprocessing started in this process."""
    for child in multiprocessing.active_children():
        child.kill()


def signal_that_killed(pid: int) -> str:
    """Waits for a child to end, and returns what killed it, as in " (killed by SIGKILL)".

    Empty if no signal killed it, or if that is unknown.
    """
    with contextlib.suppress(OSError):  # not a child, or already collected
        process = os.pidfd_open(pid)
        try:
            # Its files close a moment before it ends.
            multiprocessing.connection.wait([process], timeout=_EXIT_SECONDS)
            ended = os.waitid(os.P_PIDFD, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        finally:
            os.close(process)
        if ended is not None and ended.si_code != os.CLD_EXITED:
            return f" (killed by {signal.Signals(ended.si_status).name})"
    return ""


def is_stopped(pid: int) -> bool:
    """Whether a process of this host is known to be stopped, by SIGSTOP or a debugger, on Linux."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


@dataclass(frozen=True)
class EndWithParent:
    """A ``worker_init_fn`` that makes the worker end with its parent, then calls another one."""

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        end_with_parent()
        if self.worker_init_fn is not None:
            try:
                self.worker_init_fn(worker)
            except BaseException as error:
                # torch does not report an error that is not an `Exception`.
                raise LoaderDiedError(
                    f"worker {worker} could not start: worker_init_fn raised {described(error)}"
                ) from error


def _watch() -> None:
    try:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent_id = os.getppid()
        # Another child of the parent may hold the sentinel open, so its id is checked too.
        while not multiprocessing.connection.wait([parent.sentinel], timeout=_CHECK_INTERVAL):
            if os.getppid() != parent_id:
                break
    finally:
        end_now()


def end_now() -> NoReturn:
    """Ends this process and its children at once, without waiting for threads that may be stuck."""
    try:
        kill_children()
    finally:
        os._exit(1)
