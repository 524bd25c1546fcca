"""Threads of a loader: guarded ones, and one that watches the user's code.

`GuardedThread` keeps the failure of a thread. `LaterInterrupt` raises an interrupt after a
finalizer.

`Watchdog` notices a call of the user's code that takes longer than ``timeout``, and says where it
is. It covers what runs in the trainer and in the batcher: the sampler, `collate_fn`, and with
``num_workers=0`` the dataset. Workers are watched by torch's DataLoader. A thread cannot be ended
from outside, so a call that hangs in the trainer's process stays, in a daemon thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import queue
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
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


class LaterInterrupt:
    """Interrupts this process soon after the function returns that holds this object in a variable.
    For finalizers, because Python drops exceptions that a finalizer raises."""

    def __init__(self) -> None:
        gone: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Called when the function's variables are deleted, so the interrupt cannot hit the
        # function.
        reference = weakref.ref(self, gone.put)
        GuardedThread(_interrupt, gone, reference, name="interrupt").start()


def _interrupt(gone: queue.SimpleQueue[Any], reference: Any) -> None:
    gone.get()
    time.sleep(0.05)  # lets other finalizers finish first
    os.kill(os.getpid(), signal.SIGINT)


_NEVER = float("inf")
_SHORTEST_SLEEP = 0.001  # seconds
_LONGEST_SLEEP = 3600.0  # seconds; a limit may be longer than what `sleep` takes


class Watchdog:
    """The calls under way in one process, for one loader. Picklable while there are none, and
    without a lock."""

    def __init__(
        self, limit: float = 0, rank: int = 0, *, lock: threading.Lock | None = None
    ) -> None:
        """
        Args:
            limit: seconds that a call may take; 0 watches nothing.
            rank: for messages.
            lock: held by calls that must not run beside each other.
        """
        self.limit = limit
        self._rank = rank
        self._lock = lock
        self._calls: dict[int, tuple[str, float]] = {}  # by thread: what it is, since when

    @contextlib.contextmanager
    def call(self, what: str, *, locked: bool = False) -> Iterator[None]:
        """Watches what runs within, in this thread.

        Args:
            locked: hold the lock.
        """
        with self._lock if locked and self._lock is not None else contextlib.nullcontext():
            if not self.limit:
                yield
                return
            thread = threading.get_ident()
            self._calls[thread] = what, time.monotonic()
            try:
                yield
            finally:
                del self._calls[thread]

    def overdue(self) -> tuple[LoaderDiedError, str] | None:
        """An error for the call that has taken longest, and the stacks of this process; None if no
        call has taken too long."""
        calls = self._calls.copy().items()
        thread, (what, since) = min(calls, key=lambda call: call[1][1], default=(0, ("", _NEVER)))
        taken = time.monotonic() - since
        if taken <= self.limit:
            return None
        error = LoaderDiedError(
            f"rank {self._rank}: {what} has taken {taken:.1f} s, over timeout={self.limit:g}; the "
            "stacks in that rank's traceback say where it hangs; or raise timeout"
        )
        head = f"{what} hangs in thread 0x{thread:016x} of process {os.getpid()}:\n\n"
        return error, head + _stacks()

    def watch(self, report: Callable[[LoaderDiedError, str], None]) -> None:
        """Reports the first call that takes too long; returns then."""
        while (found := self.overdue()) is None:
            now = time.monotonic()
            oldest = min((since for _, since in self._calls.copy().values()), default=now)
            # No call that begins meanwhile can be overdue any earlier.
            time.sleep(min(max(oldest + self.limit - now, _SHORTEST_SLEEP), _LONGEST_SLEEP))
        report(*found)


def _stacks() -> str:
    """The stacks of all threads of this process."""
    try:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        return f"(no stacks: {error})"
