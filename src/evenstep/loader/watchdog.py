"""Notices a call of the user's code that takes longer than ``timeout``, and says where it is.

It covers what runs in the trainer and in the batcher: the sampler, `collate_fn`, and with
``num_workers=0`` the dataset. Workers are watched by torch's DataLoader. A thread cannot be ended
from outside, so a call that hangs in the trainer's process stays, in a daemon thread.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from evenstep.errors import LoaderDiedError

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
