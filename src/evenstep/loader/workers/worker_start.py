"""How workers are started: what each does first, and queues to them that lose no message silently.

A queue sends from a thread of its own. It drops a message that this thread cannot pickle or send,
for example because memory has run out, and its receiver would wait forever.

What a worker raised, why it cannot start, and what killed it become errors of evenstep's own.

Random state in workers and batcher is a function of (seed, epoch) and the rank or sample alone.
What a dataset draws at random while a worker prepares a sample depends on the sample's index, not
on the worker or on what it prepared before. So random augmentation is the same for any number of
workers, and after a resume. (A dataset that fetches several samples at once, by ``__getitems__``,
is seeded once for all of them, so its draws depend on the chunk.)
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import multiprocessing
import random
import re
import signal
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any

import numpy as np

# NumPy would import these when they are first used. In a process that is forked while a thread
# imports one of them, that import hangs or recurses.
import numpy.ma
import numpy.random
import torch
from torch.utils.data import get_worker_info

from evenstep.errors import EvenstepError, LoaderDiedError, SampleError, described
from evenstep.processes import EndWithParent, end_now


@dataclass(frozen=True)
class WorkerStart(EndWithParent):
    """A ``worker_init_fn`` that ends the worker with its parent, and lets the user's code find its
    own dataset in ``get_worker_info()``."""

    def __call__(self, worker: int) -> None:
        info = get_worker_info()
        # torch's class refuses to be changed, and has the dataset that wraps the user's.
        object.__setattr__(info, "dataset", info.dataset.dataset)  # type: ignore[union-attr]
        super().__call__(worker)


class TellingQueue(Queue):  # type: ignore[type-arg]
    """Ends the process that has lost a message, which all who wait for it notice."""

    # The name is private, and the only way: the queue catches whatever its thread raises, and calls
    # this. `concurrent.futures` overrides it too.
    @staticmethod
    def _on_queue_feeder_error(error: BaseException, message: object) -> None:
        try:
            traceback.print_exception(error)
        finally:
            end_now()


def context_of(start_method: str | None) -> Any:
    """The context of a start method, with these queues."""
    context: Any = copy.copy(multiprocessing.get_context(start_method))
    context.Queue = functools.partial(TellingQueue, ctx=context)
    return context


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


_MIX = 1_000_003
_LIMIT = 1 << 63  # torch takes 64 bits


def epoch_seed(seed: int, epoch: int) -> int:
    return (seed * _MIX + epoch) % _LIMIT


def rank_seed(seed: int, epoch: int, rank: int) -> int:
    """Seed for draws of a rank that belong to no sample, such as those of ``collate_fn``."""
    return (epoch_seed(seed, epoch) * _MIX + rank) % _LIMIT


def sample_seed(of_epoch: int, index: Any) -> int:
    """Seed for preparing one sample.

    Args:
        of_epoch: from `epoch_seed`.
        index: dataset index.
    """
    return (of_epoch * _MIX + zlib.crc32(repr(index).encode())) % _LIMIT


def seed_everything(seed: int) -> None:
    """Seeds Python's, NumPy's and torch's CPU random state of this process."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
