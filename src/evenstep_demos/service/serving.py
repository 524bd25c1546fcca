"""Services and trainers of the demo: one Ray on this machine, four ranks, one job after the other.

Ranks stay for all runs. The service of a run starts when all ranks are ready for it, and is closed
when all have made its last step. However the demo ends, neither ranks nor Ray are left behind.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import evenstep.service as es
from evenstep.errors import EvenstepError
from evenstep.service.backends.ray.channel import import_ray
from evenstep.service.backends.ray.discovery import connect
from evenstep.strategy import LoadingPlan
from evenstep_demos.service.messages import Ready, ServiceRunFinished, StepRecord
from evenstep_demos.service.options import RANKS
from evenstep_demos.text.ranks import run_ranks

_STORE = 256_000_000  # bytes of Ray's object store: a few steps of small batches


@dataclass(frozen=True, kw_only=True)
class ServedRun:
    """A run that has ended."""

    plans: Sequence[LoadingPlan]
    records: Mapping[int, Sequence[StepRecord]]
    """By rank."""
    status: Mapping[str, Any]
    """Status of the service at the end."""


@contextmanager
def local_ray() -> Iterator[str]:
    """Starts Ray on this machine, unless this process has joined one; yields its address."""
    # Ray sends no usage reports, and does not print errors that ranks raise anyway.
    for name, value in (("RAY_USAGE_STATS_ENABLED", "0"), ("RAY_IGNORE_UNHANDLED_ERRORS", "1")):
        os.environ.setdefault(name, value)
    cpus = max(2, os.cpu_count() or 2)
    began = connect("local", {"num_cpus": cpus, "object_store_memory": _STORE})
    ray = import_ray()
    try:
        with _terminated_in_order():
            yield str(ray.get_runtime_context().gcs_address)
    finally:
        if began:
            ray.shutdown()


@contextmanager
def _terminated_in_order() -> Iterator[None]:
    """Lets SIGTERM raise `SystemExit`. Ray's own handler aborts the process, so nothing would be
    closed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _exit(number: int, frame: Any) -> None:
    sys.exit(128 + number)


def serve_runs(
    jobs: Mapping[str, es.Job],
    trainer: Callable[..., None],
    arguments: tuple[Any, ...],
    on_message: Callable[[Any], None],
    *,
    steps: int,
    loaders: int,
) -> dict[str, ServedRun]:
    """Starts Ray and the ranks, then one service after the other.

    Args:
        jobs: by the name of the run.
        trainer: called on every rank as ``trainer(send, *arguments, address, runs)``. It sends
            `Ready` before it looks for the service of a run, and `Finished` behind its last step.
        on_message: takes all other messages of ranks, and `Ready` once all ranks are ready.
        steps: steps of each run.

    Raises:
        RankFailedError: a rank failed; no process is left.
        EvenstepError: a service could not be started, or a run was not finished.
    """
    with local_ray() as address:
        runs = _Runs(jobs, on_message, steps, loaders)
        try:
            run_ranks(trainer, RANKS, (*arguments, address, tuple(jobs)), runs.receive)
        finally:
            runs.close()
    missing = [name for name in jobs if name not in runs.served]
    if missing:
        raise EvenstepError(f"run {missing[0]!r} was not finished by all ranks")
    return runs.served


class _Runs:
    """Starts and closes services as ranks report their progress."""

    def __init__(
        self,
        jobs: Mapping[str, es.Job],
        on_message: Callable[[Any], None],
        steps: int,
        loaders: int,
    ) -> None:
        self._jobs, self._on_message = jobs, on_message
        self._steps, self._loaders = steps, loaders
        self._ready = dict.fromkeys(jobs, 0)
        self._records: dict[str, dict[int, Sequence[StepRecord]]] = {name: {} for name in jobs}
        self._service: Any = None
        self.served: dict[str, ServedRun] = {}

    def receive(self, message: Any) -> None:
        if isinstance(message, Ready):
            self._ready[message.run] += 1
            if self._ready[message.run] == RANKS:
                self._on_message(message)
                # One constructor: constructors import torch, and so take long to start.
                self._service = es.start(
                    self._jobs[message.run],
                    name=message.run,
                    loaders=self._loaders,
                    constructors=1,
                )
        elif isinstance(message, ServiceRunFinished):
            records = self._records[message.run]
            records[message.rank] = message.records
            if len(records) == RANKS:
                self.served[message.run] = ServedRun(
                    plans=[self._service.plan(step) for step in range(self._steps)],
                    records=records,
                    status=self._service.status(),
                )
                self.close()
        else:
            self._on_message(message)

    def close(self) -> None:
        """Closes the service that runs, if any."""
        service, self._service = self._service, None
        if service is not None:
            service.close()
