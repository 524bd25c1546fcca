"""The batcher as threads of the trainer process, for ``num_workers=0``."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.progress import EpochEnd
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec


class BatcherThread:
    """Same interface as `BatcherProcess`, for one pass."""

    def __init__(self, spec: LoaderSpec) -> None:
        self._spec = spec
        self.exchange, self._batcher_exchange = multiprocessing.Pipe()
        batcher_feed, self.feed = multiprocessing.Pipe()
        self._batcher_feed: Connection = batcher_feed
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._run: EpochRun | None = None
        self._ports: PipePorts | None = None
        self._thread: threading.Thread | None = None

    def begin(self, epoch: EpochSpec) -> None:
        self._ports = PipePorts(
            self._batcher_exchange, epoch.serial, self._spec.prefetch, self._results.put
        )
        self._run = EpochRun(self._spec, epoch, self._ports)
        self._thread = threading.Thread(
            target=self._work, args=(epoch,), name="evenstep-batcher", daemon=True
        )
        self._thread.start()

    def _work(self, epoch: EpochSpec) -> None:
        assert self._run is not None
        assert self._ports is not None
        end: EpochEnd | BatcherFailure | None = None
        try:
            self._run.run(Intake(self._spec, self._batcher_feed))
            end = self._run.end()
        except Closed:
            pass
        except Exception as error:
            end = BatcherFailure(error, traceback.format_exc())
        finally:
            self._ports.finish()
            # The feeder or the exchange may be blocked on a full pipe that is no longer read.
            self._batcher_feed.close()
            self._batcher_exchange.close()
        if end is not None:
            self._results.put(end)

    def credit(self) -> None:
        if self._ports is not None:
            self._ports.credit()

    def abandon(self) -> None:
        if self._run is not None and self._ports is not None:
            self._run.close()
            self._ports.close()

    def get(self, timeout: float) -> Any:
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            return None

    def alive(self) -> bool:
        return True

    def cause_of_death(self) -> str:
        return f"the batcher of rank {self._spec.rank} ended"

    def close(self) -> None:
        self.abandon()
        if self._thread is not None:
            # A sample that is being prepared cannot be interrupted; its result is dropped.
            self._thread.join(5.0)
