"""`ask`: has a question about a job answered by its samples, in a process made for it.

The process is started as batchers are, and starts workers as they do: so the user's code runs where
it will run in training, beside nothing else, and what it leaves behind ends with them. The process
itself touches neither dataset nor functions, so each worker gets them as the user left them.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import multiprocessing
import pickle
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset

from evenstep.batch.joining import keeping_random_state
from evenstep.errors import EvenstepError, LoaderDiedError, described
from evenstep.loader.batcher.ports import BatcherFailure
from evenstep.loader.options import LoaderOptions
from evenstep.loader.start import start_process
from evenstep.loader.workers.worker_start import (
    WorkerStart,
    context_of,
    could_not_start,
    explain_worker_error,
)
from evenstep.processes import end_now, end_with_parent

logger = logging.getLogger("evenstep")

PATIENCE = 120.0
"""Seconds without a result after which a sample hangs; more where `timeout` is more."""
_POLL_SECONDS = 0.25  # between two checks that the process lives
_CLOSING_SECONDS = 5.0

Run = Callable[[Callable[[Any, Any], Any], Any, Sequence[Any], int], Iterator[Any]]
"""(function, dataset, items, workers) -> ``function(dataset, item)`` of each item, in order, run by
so many workers."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What it takes to run a job's samples."""

    question: Callable[[Run], Any]
    """Returns the answer. It runs samples by what it is given, and does not touch them itself."""
    num_workers: int
    worker_init_fn: Callable[[int], None] | None = None
    start_method: str | None = None
    timeout: float = 0
    log_level: int = field(default_factory=lambda: logger.getEffectiveLevel())

    @classmethod
    def of(cls, question: Callable[[Run], Any], options: LoaderOptions) -> Probe:
        return cls(
            question=question,
            num_workers=options.num_workers,
            worker_init_fn=options.worker_init_fn,
            start_method=options.start_method,
            timeout=options.timeout,
        )


def ask(probe: Probe) -> Any:
    """The answer to a probe's question.

    Raises:
        EvenstepError: what the question raises.
        LoaderDiedError: the process died, or had no result for `PATIENCE` seconds.
    """
    if not probe.num_workers:
        with keeping_random_state():
            return probe.question(_here)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    with ours:
        with theirs:
            try:
                process = start_process(run_probe, probe, (theirs,))
            except (OSError, MemoryError) as error:
                raise could_not_start("the process that tries a few samples", error) from error
        try:
            return _answer(probe, process, ours)
        finally:
            process.join(_CLOSING_SECONDS if ours.poll() else 0)
            if process.is_alive():
                process.kill()
            process.join()


def _answer(probe: Probe, process: Any, line: Connection) -> Any:
    limit = max(PATIENCE, probe.timeout)
    since = time.monotonic()
    while True:
        alive = process.is_alive()  # before reading: what it sent before it died still counts
        with contextlib.suppress(EOFError):
            if line.poll(_POLL_SECONDS if alive else 0):
                result = pickle.loads(line.recv_bytes())
                if isinstance(result, BatcherFailure):
                    result.reraise()
                if isinstance(result, _Result):
                    return result.value
                for level, message in result:
                    logger.log(level, "%s", message)
                since = time.monotonic()
                continue
        if not alive:
            process.join()
            raise LoaderDiedError(
                "the process that tries a few samples before the first step has died (exit code "
                f"{process.exitcode}); if the system ran out of memory, lower num_workers"
            )
        if time.monotonic() - since > limit:
            raise LoaderDiedError(
                "a few samples are tried before the first step, and none of them was ready within "
                f"{limit:.0f} seconds; if samples may take so long, raise timeout={probe.timeout:g}"
            )


def run_probe(probe: Probe, line: Connection) -> None:
    """Runs in the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # finalizers of the trainer's garbage must not run here
    try:
        end_with_parent()
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")  # the same will be said in training

        def run(
            function: Callable[[Any, Any], Any], dataset: Any, items: Sequence[Any], workers: int
        ) -> Iterator[Any]:
            for result in _in_workers(probe, function, dataset, items, workers):
                _send(line, result.said)  # and a sign of life
                yield result.value

        _send(line, _Result(probe.question(run)))
    except BaseException as error:
        if isinstance(error, Exception):
            error = explain_worker_error(error, iterable=True, num_workers=1)
        if not isinstance(error, EvenstepError):
            error = LoaderDiedError(
                f"trying a few samples before the first step: {described(error)}"
            )
        with contextlib.suppress(OSError):  # the trainer has left
            _send(line, BatcherFailure(error, traceback.format_exc()))
    finally:
        end_now()


def _send(line: Connection, value: Any) -> None:
    line.send_bytes(_packed(value))


def _packed(value: Any) -> bytes:
    # torch would send tensors as memory that ends with this process.
    return pickle.dumps(value)


def _here(
    function: Callable[[Any, Any], Any], dataset: Any, items: Iterable[Any], workers: int
) -> Iterator[Any]:
    return (function(dataset, item) for item in items)


def _in_workers(
    probe: Probe,
    function: Callable[[Any, Any], Any],
    dataset: Any,
    items: Sequence[Any],
    workers: int,
) -> Iterator[_Result]:
    loader = DataLoader(
        _Asked(dataset, function, probe.log_level),
        batch_size=None,
        sampler=items,
        num_workers=max(1, min(workers, len(items))),
        worker_init_fn=WorkerStart(probe.worker_init_fn),
        multiprocessing_context=context_of(probe.start_method),
    )
    for result in loader:
        if isinstance(result, EvenstepError):
            raise result
        yield pickle.loads(result)


class _Result(NamedTuple):
    value: Any
    said: Sequence[tuple[int, str]] = ()
    """Level and text of what evenstep logged meanwhile: the trainer logs it."""


class _Asked(Dataset):  # type: ignore[type-arg]
    """Results of a function in place of samples."""

    def __init__(self, dataset: Any, function: Callable[[Any, Any], Any], level: int) -> None:
        self.dataset = dataset
        self._function = function
        self._level = level

    def __getitem__(self, item: Any) -> Any:
        kept = _Kept()
        logger.handlers, logger.propagate = [kept], False
        logger.setLevel(self._level)
        try:
            return _packed(_Result(self._function(self.dataset, item), kept.said))
        except EvenstepError as error:
            # As torch sends it, it would have a traceback for its message.
            return type(error)(str(error))


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[tuple[int, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append((record.levelno, record.getMessage()))
