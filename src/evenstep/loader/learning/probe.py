"""`ask`: has a question about a job answered by its samples, which workers made for it run.

Workers get dataset and functions as the user left them, beside nothing else, and what the user's
code leaves behind ends with them: the trainer touches neither.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from evenstep.batch.joining import keeping_random_state
from evenstep.errors import EvenstepError, LoaderDiedError, described
from evenstep.loader.options import LoaderOptions
from evenstep.loader.workers.worker_start import (
    NOT_PICKLED,
    WorkerStart,
    cannot_be_sent,
    context_of,
    could_not_start,
    explain_worker_error,
)

PATIENCE = 120.0
"""Seconds without a result after which a sample hangs; more where `timeout` is more."""

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
        LoaderDiedError: a worker died, or had no result for `PATIENCE` seconds.
    """
    with keeping_random_state():
        return probe.question(partial(_in_workers, probe) if probe.num_workers else _here)


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
) -> Iterator[Any]:
    loader = DataLoader(
        _Asked(dataset, function),
        batch_size=None,
        sampler=items,
        collate_fn=_same,
        num_workers=max(1, min(workers, len(items))),
        worker_init_fn=WorkerStart(probe.worker_init_fn),
        multiprocessing_context=context_of(probe.start_method),
        timeout=max(PATIENCE, probe.timeout),
        generator=torch.Generator(),
    )
    try:
        for result in loader:
            if isinstance(result, EvenstepError):
                raise result
            yield pickle.loads(result)
        return
    except Exception as error:
        failed = _explained(error, probe)
    # Raised here, as the traceback of the first error would keep the workers.
    raise failed


def _explained(error: Exception, probe: Probe) -> EvenstepError:
    error = explain_worker_error(error, iterable=True, num_workers=1)
    if isinstance(error, EvenstepError):
        return error
    if isinstance(error, NOT_PICKLED):
        return cannot_be_sent(error, probe.start_method)
    if isinstance(error, (OSError, MemoryError)):
        return could_not_start("the workers that try a few samples", error)
    return LoaderDiedError(
        f"trying a few samples before the first step: {described(error)}; if samples may take so "
        f"long, raise timeout={probe.timeout:g}, and if the system ran out of memory, lower "
        "num_workers"
    )


class _Asked(Dataset):  # type: ignore[type-arg]
    """Results of a function in place of samples."""

    def __init__(self, dataset: Any, function: Callable[[Any, Any], Any]) -> None:
        self.dataset = dataset
        self._function = function

    def __getitem__(self, item: Any) -> Any:
        warnings.simplefilter("ignore")  # the same will be said in training
        try:
            # torch would send tensors as memory that ends with the worker.
            return pickle.dumps(self._function(self.dataset, item))
        except EvenstepError as error:
            # As torch sends it, it would have a traceback for its message.
            return type(error)(str(error))


def _same(result: Any) -> Any:
    return result
