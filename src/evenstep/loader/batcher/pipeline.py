"""One epoch of the batcher: four threads, from the workers' chunks to the trainer's batches.

    intake   workers ──chunks──▶ checks ──ReadySamples──▶ store      waits while the store is full
    plan     store ──lengths──▶ RankProtocol ◀──messages──▶ all ranks
                                     └──planned steps──▶ queue      once their update is whole
    collate  planned step ──▶ its samples from the store ──collate_fn──▶ queue of batches
    deliver  queue of batches ──▶ trainer, in order        collate waits while the trainer is behind

There may be several collate threads. Whatever a thread raises ends the others: it wakes all that
wait for a sample, a step or a credit. They are daemons, so no exit waits for a function of the
user's that does not return.

The store holds at most two windows, of `buffer_bytes` together: one that is being planned or
filled, and one whose steps are being trained on. So the window refills while the trainer works.
Where steps are held back until their update is whole, it holds those in addition.

What is planned depends on the samples and their order alone, never on how long anything took: the
protocol takes samples in order and plans only when its window is full or the source has ended.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from evenstep.batch.step_info import StepInfo
from evenstep.errors import (
    CollateError,
    DamagedMessageError,
    EvenstepError,
    LoaderDiedError,
    PeerError,
    described,
)
from evenstep.loader.batcher.batch_assembly import StepMaker
from evenstep.loader.batcher.batcher_messages import EpochEnd, EpochSpec, LoaderSpec, StepProgress
from evenstep.loader.batcher.chunk_checks import ChunkChecks, FillerSample
from evenstep.loader.batcher.intake import IndexFeed, Intake
from evenstep.loader.batcher.ports import PipePorts
from evenstep.loader.batcher.round_planner import RoundPlanner, make_protocol
from evenstep.loader.batcher.sample_store import Closed, SampleStore
from evenstep.loader.batcher.whole_updates import StepOfUpdate
from evenstep.loader.threads import GuardedThread
from evenstep.protocol.wire import abort_message


class EpochRun:
    """One epoch on one rank. `run` works in the calling thread until all is delivered."""

    def __init__(
        self,
        spec: LoaderSpec,
        epoch: EpochSpec,
        ports: PipePorts,
        feed: IndexFeed | None,
        *,
        lock: contextlib.AbstractContextManager[Any] | None = None,
        seeds: bool = False,
    ) -> None:
        """
        Args:
            feed: of the intake.
            lock: held while samples are collated.
            seeds: see `StepMaker`.
        """
        self._feed = feed if epoch.entries is not None else None
        """Where samples are dealt on demand: asked for them."""
        self._lock = lock or contextlib.nullcontext()
        self._spec = spec
        self._epoch = epoch
        self._ports = ports
        self._protocol = make_protocol(spec, epoch)
        # The first samples one by one, until it is known for how many there is memory.
        alone = self._protocol.size.fresh
        self._store = SampleStore(1 if alone else 2 * self._protocol.size.most)
        self._checks = ChunkChecks(spec, epoch, FillerSample())
        filler_sample = self._checks.filler_sample.sample
        self._steps = StepMaker(spec, epoch, filler_sample, seeds=seeds)
        self._planner = RoundPlanner(
            spec,
            epoch,
            self._protocol,
            ports=ports,
            store=self._store,
            checks=self._checks,
            feed=feed,
        )
        self._planned_steps: queue.SimpleQueue[StepOfUpdate | None] = queue.SimpleQueue()
        """From plan to collate; None at the end."""
        self._batches: queue.SimpleQueue[Future[tuple[StepInfo, Any, StepProgress]] | None] = (
            queue.SimpleQueue()
        )
        """From collate to deliver, in order; None at the end."""
        self._collating = threading.Lock()
        self._closed = threading.Event()
        self._planned = threading.Event()
        """Nothing more is planned, nor any samples asked for."""
        self._failure: EvenstepError | None = None
        self._known = False
        """The other ranks know of the failure."""

    def end(self) -> EpochEnd:
        """How the epoch ended, once `run` has returned."""
        too_long = self._epoch.too_long + self._protocol.too_long
        return EpochEnd(self._protocol.undelivered, self._checks.take_bad_before(), too_long)

    def close(self) -> None:
        """Makes `run` return soon. Any thread may call it."""
        self._closed.set()
        self._store.close()
        self._planned_steps.put(None)

    def run(self, intake: Intake) -> None:
        """Works through an epoch.

        Raises:
            EvenstepError: what went wrong, here or on another rank; raised once every step settled
                before it has been delivered, so that all ranks get equally many; but not those of
                an update that will never be whole.
            Closed: `close` was called.
        """
        self._guard(intake.begin, self._epoch, self._store.check)
        threads: list[GuardedThread] = []
        self._guard(self._start, threads)
        if self._failure is None:
            self._guard(self._take_in, intake)
        for thread in threads:
            thread.join()
        if self._closed.is_set():
            raise Closed
        if self._failure is not None:
            if not self._known:  # no exchange was left to report it in
                self._ports.announce(_abort(self._failure))
            raise self._failure

    def fail(self, error: BaseException) -> None:
        """Ends the epoch with an error. Any thread may call it."""
        if not isinstance(error, EvenstepError):
            error = self._died("in its batcher", error)
        self._failure = self._failure or error
        self._store.end(self._failure)

    def _died(self, where: str, cause: BaseException) -> LoaderDiedError:
        # The names of these two add nothing to what torch and the system say.
        plain = isinstance(cause, (RuntimeError, OSError))
        said = str(cause) if plain else described(cause)
        error = LoaderDiedError(f"rank {self._spec.rank}, {where}: {said}")
        error.__cause__ = cause
        return error

    def _start(self, threads: list[GuardedThread]) -> None:
        """Starts the threads. If one cannot be started, the others end."""
        works = [self._deliver, *[self._collate] * self._spec.collate_threads, self._plan]
        try:
            for work in works:
                name = work.__name__.strip("_")
                thread = GuardedThread(self._guard, work, name=name)
                thread.start()
                threads.append(thread)
        except BaseException:
            self._planned_steps.put(None)
            self._batches.put(None)
            raise

    def _guard(self, work: Callable[..., None], *arguments: Any) -> None:
        """Does the work of a thread; what it raises ends the other threads too."""
        try:
            work(*arguments)
        except Closed:
            pass
        except BaseException as error:
            self.fail(error)

    # The four threads

    def _take_in(self, intake: Intake) -> None:
        try:
            states = self._planner.worker_states
            with contextlib.closing(intake.chunks(self._epoch, states)) as chunks:
                for chunk in chunks:
                    if (ready := self._checks.ready(chunk)) is not None:
                        self._store.put(ready)
        except Closed:
            self._store.end()
            self._drain()
        except BaseException as error:
            # Not a failure of the epoch yet: the samples before it may still be planned.
            if not isinstance(error, EvenstepError):
                error = self._died("preparing samples", error)
            self._store.end(error)
            self._drain()
        else:
            self._store.end()

    def _drain(self) -> None:
        if self._feed is not None:
            self._feed.drain(self._planned)

    def _plan(self) -> None:
        try:
            while not self._planner.finished:
                self._planner.gather()
                if self._failure is not None:
                    raise self._failure
                for step in self._planner.exchange():
                    self._planned_steps.put(step)
        except Closed:
            raise
        except BaseException as error:
            self._known = isinstance(error, PeerError) and not isinstance(
                error, DamagedMessageError
            )
            if not self._known:
                # In place of the message that is due, so that the other ranks learn of it at once.
                self._ports.exchange(_abort(error))
                self._known = True
            raise
        else:
            # Under exhausted="stop" the source may have more samples, which nothing will use.
            self._store.stop()
        finally:
            self._planned_steps.put(None)
            try:
                self._planner.end_requests()
            finally:
                self._planned.set()

    def _collate(self) -> None:
        try:
            while True:
                with self._collating:  # so that batches are delivered in the order of their steps
                    if (step := self._planned_steps.get()) is None:
                        return
                    self._ports.await_credit()
                    batch: Future[tuple[StepInfo, Any, StepProgress]] = Future()
                    self._batches.put(batch)
                try:
                    batch.set_result(self._make_batch(step))
                except BaseException as error:
                    batch.set_exception(error)
        finally:
            self._planned_steps.put(None)  # for the other threads that collate
            self._batches.put(None)

    def _deliver(self) -> None:
        try:
            while (batch := self._batches.get()) is not None:
                self._ports.deliver(*batch.result())
        finally:
            # After a failure the trainer takes no more steps, so it would give no more credits.
            self._ports.end_delivery()

    def _make_batch(self, of_update: StepOfUpdate) -> tuple[StepInfo, Any, StepProgress]:
        groups: list[list[Any]] = []
        indices: tuple[Any, ...] = ()
        planned = of_update.planned
        for numbers in planned.micro_batches:
            samples, own = self._store.take(numbers)
            groups.append(samples)
            indices += own
        try:
            with self._lock:
                step, batch = self._steps.make(of_update, groups, indices)
        except EvenstepError:
            raise
        except BaseException as error:
            raise CollateError(
                f"step {planned.index} of epoch {self._epoch.epoch} on rank {self._spec.rank}, "
                f"samples {list(indices)}: {described(error)}"
            ) from error
        return step, batch, of_update.progress


def _abort(error: BaseException) -> bytes:
    return abort_message(described(error))
