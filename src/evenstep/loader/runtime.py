"""`LoaderRuntime`: what runs for a loader, started from the trainer process.

Loaders that are open when the process ends are closed before multiprocessing waits for child
processes to end, as it does in the main process and in ranks that multiprocessing started.

`Feeder` sends the sampler's indices to the batcher, from a thread of the trainer process. The
sampler runs in the process in which the user made it, so it need not be picklable, may be infinite,
and its state can be read there. Where samples are dealt on demand, the batcher says which to send.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any, cast

from evenstep.arrays import Int64Array
from evenstep.errors import EvenstepError, SampleError, described
from evenstep.loader.arguments import check_index
from evenstep.loader.batcher.batcher_handles import BatcherProcess, BatcherThread
from evenstep.loader.batcher.batcher_messages import LoaderSpec
from evenstep.loader.learning.probe import Probe, ask
from evenstep.loader.learning.question import JobAnswer, JobQuestion
from evenstep.loader.options import Faults
from evenstep.loader.resume.epoch_cursor import EpochStart
from evenstep.loader.start import threads_beside
from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.first_rows import FirstRows
from evenstep.loader.transport.peers import LoaderNumber
from evenstep.loader.transport.rank_exchange import RankExchange, make_exchange
from evenstep.loader.transport.session import Session

_BLOCK = 512  # indices in a message
_POLL_SECONDS = 0.2  # between two checks whether the trainer has left the pass


class Feeder:
    """Feeds one pass. Waits while the pipe is full."""

    def __init__(
        self,
        connection: Connection,
        serial: int,
        indices: Iterable[tuple[int, Any]],
        after: Feeder | None,
        deals: Callable[[Int64Array], Iterable[tuple[int, Any]]] | None = None,
        first_rows: Callable[[list[Any]], FirstRows | None] = lambda indices: None,
    ) -> None:
        """
        Args:
            indices: arrival numbers and dataset indices.
            after: the feeder of the pass before, which must have sent its last block first.
            deals: `indices` for entries of the ranks' stream that are dealt to this rank on demand;
                None where `indices` are all.
            first_rows: see `EpochStart`.
        """
        self._connection = connection
        self._serial = serial
        self._indices = indices
        self._deals = deals
        # One of another batcher has nothing to do with this one, and may hang.
        self._after = after if after is not None and after._connection is connection else None
        self._first_rows = first_rows
        self._left = threading.Event()
        self._unsent: BaseException | None = None
        """Why the batcher could not be sent the end of the indices."""
        self._thread = GuardedThread(self._run, name="feeder")
        self._thread.start()

    def leave(self) -> None:
        """Stops feeding: the pass was abandoned."""
        self._left.set()

    @property
    def failure(self) -> BaseException | None:
        """Why no more indices will come, if the batcher could not be sent that."""
        return self._unsent or self._thread.failure

    def _run(self) -> None:
        if self._after is not None:
            self._after._thread.join()
            self._after = None
        blocks, told = self._blocks(), False
        while not self._left.is_set():
            block: list[tuple[int, Any]] | EvenstepError | None
            try:
                block = next(blocks, None)
                for _, index in block or ():
                    check_index(index)
            except EvenstepError as error:
                block = error
            except BaseException as error:
                block = SampleError(f"the sampler raised {described(error)}")
            if not isinstance(block, list):
                break
            try:
                if not told and (first := self._first_rows([index for _, index in block])):
                    self._send(first)
                told = True
                self._send(block)
            except OSError:  # the batcher is gone
                raise
            except BaseException as error:
                block = SampleError(f"indices of the sampler cannot be sent: {described(error)}")
                break
        else:
            block = None
        try:
            self._send(block)
        except BaseException as error:
            self._unsent = error
        while self._deals is not None and self._next_deal(until_left=False) is not None:
            pass  # the batcher may ask for more than the pipe holds, and would hang

    def _send(self, block: Any) -> None:
        self._connection.send((self._serial, block))

    def _blocks(self) -> Iterator[list[tuple[int, Any]]]:
        """Blocks of indices, with an empty one after each deal."""
        yield from _in_blocks(self._indices)
        if self._deals is not None:
            yield []
            while (entries := self._next_deal()) is not None:
                yield from _in_blocks(self._deals(entries))
                yield []

    def _next_deal(self, *, until_left: bool = True) -> Int64Array | None:
        """Waits for the next deal of this pass; None if there will be none."""
        with contextlib.suppress(EOFError, OSError):  # the batcher is gone
            while not (until_left and self._left.is_set()):
                if self._connection.poll(_POLL_SECONDS):
                    serial, entries = self._connection.recv()
                    if serial == self._serial:
                        if entries is None:
                            self._deals = None
                        return cast("Int64Array | None", entries)
        return None


def _in_blocks(indices: Iterable[tuple[int, Any]]) -> Iterator[list[tuple[int, Any]]]:
    iterator = iter(indices)
    while block := list(itertools.islice(iterator, _BLOCK)):
        yield block


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

    def ask(self, question: JobQuestion) -> JobAnswer:
        """The answer to a question about the job, from a process made for it."""
        answer: JobAnswer = ask(Probe.of(question.answer, question.options))
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
            self._started = self._new_process(spec)
        else:
            if self._kept is None or not self._kept.alive():
                self._kept = self._new_process(spec)
            self._started = self._kept
        return self._started

    def _new_process(self, spec: LoaderSpec) -> BatcherProcess:
        if self._exchange is not None:
            self._exchange.patience.beside = threads_beside(spec.start_method)
        return BatcherProcess(spec)

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
