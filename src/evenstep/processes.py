"""A process that ends when its parent does, however that ends.

Nothing tells a process that its parent was killed, so it watches. A worker would notice by itself,
but late, or never while it is blocked on a full pipe; and as long as it lives it holds its copies
of its parent's pipes open, and readers of these pipes wait.

Children are killed, not asked: one that is stopped, or that handles SIGTERM itself, would not end,
and at its own end multiprocessing waits for all children.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import NoReturn

from evenstep.errors import LoaderDiedError, described

_CHECK_INTERVAL = 0.5  # seconds between checks of the parent
_EXIT_SECONDS = 5.0  # for the end of a process that has begun to end


def end_with_parent() -> None:
    """Makes this process end within a second of its parent, and its children with it, however it
    ends."""
    Finalize(None, kill_children, exitpriority=100)  # before multiprocessing waits for them
    threading.Thread(target=_watch, name="evenstep-watch", daemon=True).start()


def kill_children() -> None:
    """Kills all children that multiprocessing started in this process."""
    for child in multiprocessing.active_children():
        child.kill()


def signal_that_killed(pid: int) -> str:
    """The signal that ended a child, as in " (killed by SIGKILL)", once it has ended. Empty if none
    did, or if nobody knows."""
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


@dataclass(frozen=True)
class EndWithParent:
    """A ``worker_init_fn`` that first makes the worker end with its parent."""

    worker_init_fn: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        end_with_parent()
        if self.worker_init_fn is not None:
            try:
                self.worker_init_fn(worker)
            except BaseException as error:
                # torch would tell nobody of what is not an `Exception`.
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
    """Ends this process and its children. Waits for no thread, which may be stuck."""
    try:
        kill_children()
    finally:
        os._exit(1)
