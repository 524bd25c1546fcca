"""Which way a loader's batchers are started, where no start method is asked for.

A trainer without threads is forked, as torch forks it: that takes no time. Beside other threads,
and where there is an accelerator, whose driver has some, batchers come from the fork server, unless
a fork is the only way to have the dataset as it is in the trainer.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch

from evenstep.errors import ConfigurationError
from evenstep.loader.options import LoaderOptions
from evenstep.loader.start.fork_server import ServerLostError, fork_server
from evenstep.loader.start.portable import NotPortable, make_portable

logger = logging.getLogger("evenstep")

_SERVERS = 2  # that are tried, where one is lost
_warned = False


class StartChoice:
    """Starts the processes of one loader."""

    def __init__(self) -> None:
        self._refusal: str | None = None
        """Why the fork server cannot start them."""

    def prepare(self, options: LoaderOptions) -> None:
        """Lets the fork server import what it will need, in the background."""
        if options.num_workers and _serves(options.start_method):
            try:
                fork_server().prepare(make_portable(options).imports)
            except NotPortable as error:
                self._refuse(error)

    def __call__(self, run: Callable[..., None], spec: Any, ends: Sequence[Connection]) -> Any:
        """A process that calls ``run(spec, *ends)``: a `multiprocessing.Process`, or one like it.

        Args:
            run: a function of evenstep's own: it runs a batcher, or asks what a job is like.
            spec: a dataclass with the `start_method` of its workers, by which it is started, too.
            ends: of pipes.
        """
        if _serves(spec.start_method):
            spec = replace(spec, start_method="fork")  # of the workers, by the process
            for _ in range(_SERVERS):
                if self._refusal is not None:
                    break
                try:
                    return fork_server().start(make_portable((run, spec)), ends)
                except ServerLostError as error:
                    logger.warning("%s; another way to start workers is taken", error)
                except NotPortable as error:
                    self._refuse(error)
        context: Any = multiprocessing.get_context(spec.start_method)
        method = context.get_start_method()
        if method == "fork":
            _warn_of_threads(self._refusal)
        # Not a daemon: those may not have children, and this one has the workers.
        process = context.Process(
            target=run, args=(spec, *ends), name="evenstep-batcher", daemon=False
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

    def _refuse(self, error: NotPortable) -> None:
        self._refusal = str(error)
        logger.debug("workers are forked from the trainer: %s", error)


def _serves(start_method: str | None) -> bool:
    """Whether the fork server is needed, and evenstep may choose: no start method is set, neither
    for this loader nor for all."""
    if start_method is not None or sys.platform != "linux":
        return False
    if not (_other_threads() or torch.accelerator.is_available()):
        return False
    default = multiprocessing.get_all_start_methods()[0]
    # In a process that it has started, multiprocessing sets the method by which it did.
    started = multiprocessing.parent_process() is not None
    return started or multiprocessing.get_start_method(allow_none=True) in (None, default)


def _other_threads() -> list[str]:
    """Names of Python's threads that are not evenstep's, which know what they hold."""
    return [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.name.startswith("evenstep")
    ]


def _warn_of_threads(refusal: str | None) -> None:
    global _warned
    others = _other_threads()
    if not others or _warned:
        return
    _warned = True
    because = (
        f"They are forked because the dataset, or a function of the loader, cannot be sent to "
        f"evenstep's fork server: {refusal}. Make it importable, picklable and small"
        if refusal is not None
        else "Leave out multiprocessing_context, for evenstep's fork server"
    )
    warnings.warn(
        f"evenstep forks workers while other threads run ({', '.join(sorted(others))}). A lock "
        f"that one of them holds at that moment stays locked in the workers, and a worker that "
        f'needs it waits for ever. {because}; or use multiprocessing_context="forkserver", or '
        "num_workers=0",
        RuntimeWarning,
        stacklevel=6,
    )
