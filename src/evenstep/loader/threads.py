"""`GuardedThread`: a thread that never ends in silence; `LaterInterrupt`, which has one."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from evenstep.errors import LoaderDiedError


class GuardedThread:
    """A daemon thread, so that no exit waits for it. Whatever its work raises, be it an `Exception`
    or not, is kept for those who wait for the thread."""

    def __init__(
        self,
        work: Callable[..., None],
        *arguments: Any,
        name: str,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        """
        Args:
            failed: called with what `work` raises, to wake those who would not look.
        """
        self.failure: BaseException | None = None
        self._failed = failed
        self._thread = threading.Thread(
            target=self._run, args=(work, *arguments), name=f"evenstep-{name}", daemon=True
        )

    def start(self) -> None:
        """
        Raises:
            LoaderDiedError: there is no room for another thread.
        """
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            raise LoaderDiedError(
                f"the thread {self._thread.name} could not be started ({error}), beside "
                f"{threading.active_count()} others of process {os.getpid()}; raise the limit on "
                "threads (ulimit -u) or memory, or run less on this machine"
            ) from error

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException as error:
            self.failure = error
            if self._failed is not None:
                self._failed(error)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout: float | None = None) -> None:
        """Waits until the thread has ended; not for itself."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


class LaterInterrupt:
    """Interrupts this process soon after the function has returned whose variable holds this. For
    finalizers: what is raised in one, Python drops."""

    def __init__(self) -> None:
        gone: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Called while the function's variables go, when no interrupt can be raised in it any more.
        reference = weakref.ref(self, gone.put)
        GuardedThread(_interrupt, gone, reference, name="interrupt").start()


def _interrupt(gone: queue.SimpleQueue[Any], reference: Any) -> None:
    gone.get()
    time.sleep(0.05)  # for other finalizers that run with this one
    os.kill(os.getpid(), signal.SIGINT)
