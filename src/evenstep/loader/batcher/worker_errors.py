"""What a worker raised, why it cannot start, and what killed it, as errors of evenstep's own."""

from __future__ import annotations

import contextlib
import errno
import re
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from evenstep.errors import EvenstepError, LoaderDiedError, SampleError, described

_CAUGHT = re.compile(r"Caught (\w+) in DataLoader worker process \d+\.\n")

_NO_SEMAPHORE = (errno.ENOENT, errno.EROFS, errno.EACCES, errno.ENOSPC, errno.ENOSYS)

_on_death: Callable[[int, Any], Any] | None = None  # torch's handler, set once per process


def explain_worker_error(error: Exception, *, iterable: bool, num_workers: int) -> Exception:
    """A `SampleError` with the dataset's own message, where the dataset raised: torch re-raises a
    worker's error with the worker's whole traceback as its message. Other errors as they are."""
    text = str(error)
    caught = _CAUGHT.match(text)
    name = caught[1] if caught else type(error).__name__
    message = text.rpartition(f"{name}: ")[2].strip() if caught else text
    if isinstance(error, EvenstepError):
        return type(error)(message) if caught else error
    if caught and not iterable:
        # Errors of a map-style dataset are sample errors already.
        return LoaderDiedError(f"a worker failed: {name}: {message}")
    if caught or (iterable and not num_workers):
        return SampleError(f"the dataset raised {name}: {message}; fix or exclude the sample")
    return error


def could_not_start(what: str, error: OSError | MemoryError) -> LoaderDiedError:
    """
    Args:
        what: the batcher or the workers of a rank.
    """
    remedy = (
        "raise the limits on processes (ulimit -u) and open files (ulimit -n), or give the job "
        "more memory"
    )
    if isinstance(error, OSError) and error.errno in _NO_SEMAPHORE:
        remedy = (
            "processes share semaphores in /dev/shm, which is missing, full or read-only: mount a "
            "tmpfs there (docker run --shm-size=1g), or use num_workers=0"
        )
    elif "AF_UNIX" in str(error):  # it has no errno
        remedy = "a socket in TMPDIR has too long a path: set TMPDIR to a shorter one"
    return LoaderDiedError(f"{what} could not be started ({described(error)}); {remedy}")


@contextlib.contextmanager
def raising_worker_deaths() -> Iterator[None]:
    """Lets torch raise the death of a worker within this context, and nowhere else.

    torch raises it from a signal handler, in whatever the main thread is doing at the moment.
    Elsewhere in the batcher that could interrupt the use of a lock. Windows has no such signal, and
    torch looks for dead workers there.
    """
    global _on_death
    if sys.platform == "win32":
        yield
        return
    if _on_death is not None:
        signal.signal(signal.SIGCHLD, _on_death)
        _on_death(signal.SIGCHLD, None)  # for workers that died in the meantime
    try:
        yield
    finally:
        handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _on_death = handler if callable(handler) else None
