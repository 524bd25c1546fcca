"""How workers are started: what each does first, and queues to them that lose no message silently.

A queue sends from a thread of its own. It drops a message that this thread cannot pickle or send,
for example because memory has run out, and its receiver would wait forever.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import traceback
from dataclasses import dataclass
from multiprocessing.queues import Queue
from typing import Any

from torch.utils.data import get_worker_info

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
