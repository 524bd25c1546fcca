"""Queues between batcher and workers that lose no message in silence.

Such a queue sends from a thread of its own. What that cannot pickle or send, as memory has run out,
it drops, and whoever waits for it waits for ever.
"""

from __future__ import annotations

import copy
import functools
import multiprocessing
import traceback
from multiprocessing.queues import Queue
from typing import Any

from evenstep.processes import end_now


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
