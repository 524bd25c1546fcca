"""`LoaderRuntime`: what runs for a loader, started from the trainer process.

Loaders that are open when the process ends are closed before multiprocessing waits for child
processes to end, as it does in the main process and in ranks that multiprocessing started.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from multiprocessing.util import Finalize
from typing import Any

from evenstep.errors import described
from evenstep.loader.batcher.batcher_handles import BatcherProcess, BatcherThread
from evenstep.loader.batcher.batcher_messages import LoaderSpec
from evenstep.loader.feeder import Feeder
from evenstep.loader.learning.probe import Probe, ask
from evenstep.loader.learning.question import JobAnswer, JobQuestion
from evenstep.loader.options import Faults, LoaderOptions
from evenstep.loader.resume.epoch_cursor import EpochStart
from evenstep.loader.start.choice import StartChoice
from evenstep.loader.transport.peers import LoaderNumber
from evenstep.loader.transport.rank_exchange import RankExchange, make_exchange
from evenstep.loader.transport.session import Session

_open: weakref.WeakSet[Any] = weakref.WeakSet()
_registered_in = -1  # the process in which `_close_all` is registered


class LoaderRuntime:
    """One exchange thread for the life of the loader; a batcher and a feeder for each pass, or one
    batcher for all where workers are persistent."""

    def __init__(self, group: Any) -> None:
        """
        Args:
            group: of all ranks that share the loader's steps, as the loader has it.
        """
        self._group = group
        self._number = LoaderNumber(group)
        self._exchange: RankExchange | None = None
        self._kept: BatcherProcess | None = None
        self._started: BatcherProcess | BatcherThread | None = None  # for the pass that begins
        self._feeder: Feeder | None = None  # the last pass's
        self._start = StartChoice()

    def prepare(self, options: LoaderOptions) -> None:
        """Begins in the background what the first pass would wait for."""
        self._start.prepare(options)

    def ask(self, question: JobQuestion) -> JobAnswer:
        """The answer to a question about the job, from a process made for it."""
        answer: JobAnswer = ask(Probe.of(question.answer, question.options), self._start)
        return answer

    def connect(self, context_parallel: int, faults: Faults) -> RankExchange:
        """The exchange, made when it is first needed.

        Raises:
            PeerError: a rank died, now or before.
            MismatchError: another rank connects another loader.
        """
        if self._exchange is None:
            self._exchange = make_exchange(
                self._group, context_parallel, faults, self._number.now()
            )
        if self._exchange.failure is not None:
            raise self._exchange.failure
        return self._exchange

    @contextlib.contextmanager
    def beginning(self, exchange: RankExchange) -> Iterator[None]:
        """What is raised within, where a pass is started, ends that pass on all ranks, and the
        batcher that was started for it."""
        try:
            yield
        except BaseException as error:
            session = Session(None, 0)
            session.leave(None if isinstance(error, KeyboardInterrupt) else described(error))
            exchange.begin(session)
            if self._started is not None:
                self._started.close()
            raise
        finally:
            self._started = None

    def start_batcher(self, start: EpochStart, spec: LoaderSpec) -> BatcherProcess | BatcherThread:
        """The batcher of a pass: the last one's, if it was kept, lives and can serve this one."""
        broken = self._kept is not None and self._kept.exchange.closed
        if start.needs_new_workers or broken:
            self.close_batcher()
        if not spec.num_workers:
            self._started = BatcherThread(spec)
        elif not spec.keeps_workers:
            self._started = BatcherProcess(spec, self._start)
        else:
            if self._kept is None or not self._kept.alive():
                self._kept = BatcherProcess(spec, self._start)
            self._started = self._kept
        return self._started

    def start_feeder(
        self,
        start: EpochStart,
        batcher: BatcherProcess | BatcherThread,
        serial: int,
    ) -> Feeder | None:
        """The feeder of a pass; None for an iterable dataset."""
        indices = start.indices()
        previous = self._feeder if batcher is self._kept else None
        self._feeder = None
        if indices is not None:
            self._feeder = Feeder(
                batcher.feed,
                serial,
                indices,
                previous,
                start.deals(),
                start.first_rows,
            )
        return self._feeder

    def close_batcher(self) -> None:
        """Ends the batcher that is kept between passes, if there is one."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def close(self) -> None:
        """Ends everything. Idempotent."""
        self.close_batcher()
        if self._exchange is not None:
            self._exchange.close()
            self._exchange = None


def close_at_exit(owner: Any) -> None:
    """Registers ``owner.close()`` to be called, if the owner lives until then."""
    global _registered_in
    _open.add(owner)
    if _registered_in != os.getpid():
        _registered_in = os.getpid()
        Finalize(None, _close_all, exitpriority=100)


def unregister(owner: Any) -> None:
    """Of `close_at_exit`, once the owner is closed."""
    _open.discard(owner)


def _close_all() -> None:
    for owner in list(_open):
        owner.close()
