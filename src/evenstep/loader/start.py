"""How a loader's processes are started: as multiprocessing starts them, so by fork on Linux.

A fork copies the locks that other threads hold, and a worker that needs one waits for ever. torch's
own workers do, too: its random generator has such a lock. Whoever has threads that use it passes
``multiprocessing_context="forkserver"``, and a wait that is logged says so.
"""

from __future__ import annotations

import multiprocessing
import pickle
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from evenstep.errors import ConfigurationError


def start_process(run: Callable[..., None], spec: Any, ends: Sequence[Connection]) -> Any:
    """A `multiprocessing.Process` that calls ``run(spec, *ends)``.

    Args:
        run: a function of evenstep's own: it runs a batcher, or asks what a job is like.
        spec: a dataclass with the `start_method` of the process and of its workers.
        ends: of pipes.

    Raises:
        ConfigurationError: the spec cannot be pickled, which the start method needs.
    """
    method = _method(spec.start_method)
    context: Any = multiprocessing.get_context(method)
    # Not a daemon: those may not have children, and this one has the workers.
    process = context.Process(
        target=run,
        args=(replace(spec, start_method=method), *ends),
        name="evenstep-batcher",
        daemon=False,
    )
    try:
        process.start()
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            "the dataset, or a function of the loader, cannot be sent to a worker process "
            f"({error}), which start method {method!r} on {sys.platform} needs; define it at "
            "the top level of a module, of what can be pickled, or use num_workers=0"
        ) from error
    return process


def threads_beside(start_method: str | None) -> list[str]:
    """Names of the Python threads whose locks a fork would copy now. Those of evenstep know what
    they hold."""
    if _method(start_method) != "fork":
        return []
    return [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith("evenstep")
    ]


def _method(asked: str | None) -> str:
    if asked is not None:
        return asked
    default = multiprocessing.get_all_start_methods()[0]
    if multiprocessing.parent_process() is not None:
        return default  # where multiprocessing's is that by which this process was started
    return multiprocessing.get_start_method(allow_none=True) or default
