"""The batcher as threads of the trainer process, for ``num_workers=0``."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from evenstep.cost.measured import Ratios
from evenstep.errors import EvenstepError, LoaderDiedError, described
from evenstep.loader.batcher.batcher_messages import EpochSpec, LoaderSpec
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.threads import GuardedThread, Watchdog
from evenstep.loader.workers.worker_start import could_not_start


class BatcherThread:
    """Same interface as `BatcherProcess`, for one pass."""

    def __init__(self, spec: LoaderSpec) -> None:
        """
        Raises:
            LoaderDiedError: no more files may be opened.
        """
        self._spec = spec
        # `length_fn` and `collate_fn` may share a tokenizer, in which every call sets padding and
        # truncation for itself.
        self._watchdog = Watchdog(spec.timeout, spec.rank, lock=threading.Lock())
        try:
            self.exchange, self._batcher_exchange = multiprocessing.Pipe()
            batcher_feed, self.feed = multiprocessing.Pipe()
        except OSError as error:
            raise could_not_start(f"the batcher of rank {spec.rank}", error) from error
        self._batcher_feed: Connection = batcher_feed
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._run: EpochRun | None = None
        self._ports: PipePorts | None = None
        self._thread: GuardedThread | None = None

    def begin(self, epoch: EpochSpec) -> None:
        """
        Raises:
            LoaderDiedError: there is no room for another thread.
        """
        self._ports = PipePorts(
            self._batcher_exchange, epoch.serial, self._spec.memory.prefetch, self._results.put
        )
        intake = Intake(self._spec, self._batcher_feed, self._watchdog)
        self._run = EpochRun(self._spec, epoch, self._ports, intake.feed, self._watchdog)
        thread = GuardedThread(self._work, self._run, intake, self._ports, name="batcher")
        thread.start()
        self._thread = thread

    def _work(self, run: EpochRun, intake: Intake, ports: PipePorts) -> None:
        try:
            try:
                run.run(intake)
            finally:
                ports.finish()
            self._results.put(run.end())
        except Closed:
            pass
        except EvenstepError as error:
            self._results.put(BatcherFailure(error, traceback.format_exc()))
        finally:
            # The feeder may be blocked on a full pipe that is no longer read.
            with self._batcher_feed, self._batcher_exchange:
                ports.await_answer()

    def credit(self) -> None:
        if self._ports is not None:
            self._ports.credit()

    def measured(self, ratios: Ratios, found: tuple[int, int]) -> None:
        if self._ports is not None:
            self._ports.measured = ratios, found

    def abandon(self) -> None:
        if self._run is not None and self._ports is not None:
            self._run.close()
            self._ports.close()

    def get(self, timeout: float) -> Any:
        """As `BatcherProcess.get`."""
        alive = self.alive()  # checked before reading
        try:
            return self._results.get(timeout=timeout if alive else 0)
        except queue.Empty:
            if alive:
                hangs = self._watchdog.overdue()
                return BatcherFailure(*hangs) if hangs else None
            raise LoaderDiedError(self.cause_of_death()) from None

    def alive(self) -> bool:
        return self._thread is None or self._thread.alive()

    def cause_of_death(self) -> str:
        why = ""
        if self._thread is not None:
            self._thread.join(1.0)  # it closes its pipes a moment before it ends
            if (failure := self._thread.failure) is not None:
                why = f": {described(failure)}"
        return f"the batcher of rank {self._spec.rank} ended{why}"

    def close(self) -> None:
        self.abandon()
        if self._thread is None:  # which would have closed these
            self._batcher_feed.close()
            self._batcher_exchange.close()
        elif not self._watchdog.overdue():
            # A sample that is being prepared cannot be interrupted; its result is dropped.
            self._thread.join(5.0)
