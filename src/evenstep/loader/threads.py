"""`GuardedThread`: a thread that keeps its failure."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from evenstep.errors import LoaderDiedError


class GuardedThread:
    """A daemon thread, so no exit waits for it. It keeps whatever its work raises, even what is not
    an `Exception`, for those that wait for the thread."""

    def __init__(
        self,
        work: Callable[..., None],
        *arguments: Any,
        name: str,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        """
        Args:
            failed: called with what `work` raises, to wake threads that do not look at `failure`.
        """
        self.failure: BaseException | None = None
        self._failed = failed
        self._thread = threading.Thread(
            target=self._run, args=(work, *arguments), name=f"evenstep-{name}", daemon=True
        )

    def start(self) -> None:
        """
        Raises:
            LoaderDiedError: the system has no room for another thread.
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
        """Waits until the thread has ended. Does nothing in the thread itself."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
