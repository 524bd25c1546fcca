"""One epoch of the batcher: four threads, from the workers' chunks to the trainer's batches.

    intake   workers ──chunks──▶ checks ──ReadySamples──▶ store      waits while the store is full
    plan     store ──lengths──▶ RankProtocol ◀──messages──▶ all ranks
                                     └──planned steps──▶ queue      once their update is whole
    collate  planned step ──▶ its samples from the store ──collate_fn──▶ queue of batches
    deliver  queue of batches ──▶ trainer, in order        collate waits while the trainer is behind

The store holds at most two windows: one that is being planned or filled, and one whose steps are
being trained on. So the window refills while the trainer works. Where steps are held back until
their update is whole, it holds those in addition.

What is planned depends on the samples and their order alone, never on how long anything took: the
protocol takes samples in order and plans only when its window is full or the source has ended.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from evenstep.batch.step_info import StepInfo
from evenstep.errors import EvenstepError, LoaderDiedError, PeerError
from evenstep.loader.batcher.batch_assembly import make_step
from evenstep.loader.batcher.filler_sample import FillerSample
from evenstep.loader.batcher.intake import ChunkChecks, Intake
from evenstep.loader.batcher.ports import Ports
from evenstep.loader.batcher.progress import EpochEnd, StepProgress
from evenstep.loader.batcher.round_planner import RoundPlanner, make_protocol
from evenstep.loader.batcher.sample_store import Closed, SampleStore
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.batcher.whole_updates import StepOfUpdate
from evenstep.loader.workers.iterable import WorkerStateLog
from evenstep.protocol.wire import abort_message


class EpochRun:
    """One epoch on one rank. `run` works in the calling thread until all is delivered."""

    def __init__(
        self, spec: LoaderSpec, epoch: EpochSpec, ports: Ports, *, seeds: bool = False
    ) -> None:
        """
        Args:
            seeds: see `make_step`.
        """
        self._spec = spec
        self._epoch = epoch
        self._ports = ports
        self._seeds = seeds
        self._protocol = make_protocol(spec, epoch)
        self._store = SampleStore(2 * self._protocol.window_size)
        self._filler_sample = FillerSample()
        self._checks = ChunkChecks(spec, epoch, self._filler_sample)
        self._worker_states = (
            WorkerStateLog(max(spec.num_workers, 1), epoch.worker_states) if spec.iterable else None
        )
        self._planner = RoundPlanner(
            spec,
            epoch,
            self._protocol,
            ports=ports,
            store=self._store,
            checks=self._checks,
            filler_sample=self._filler_sample,
            worker_states=self._worker_states,
        )
        self._planned_steps: queue.SimpleQueue[StepOfUpdate | None] = queue.SimpleQueue()
        """From plan to collate; None at the end."""
        self._batches: queue.SimpleQueue[Future[tuple[StepInfo, Any, StepProgress]] | None] = (
            queue.SimpleQueue()
        )
        """From collate to deliver, in order; None at the end."""
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._all_planned = False

    def end(self) -> EpochEnd:
        """How the epoch ended, once `run` has returned."""
        return EpochEnd(self._protocol.undelivered, self._checks.take_bad_before())

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
        self._planner.request = intake.request
        self._guard(lambda: intake.begin(self._epoch))
        threads = [
            threading.Thread(
                target=self._guard, args=(work,), name=f"evenstep{work.__name__}", daemon=True
            )
            for work in (self._plan, self._collate, self._deliver)
        ]
        for thread in threads:
            thread.start()
        if self._failure is None:
            self._guard(lambda: self._take_in(intake))
        for thread in threads:
            thread.join()
        if self._closed.is_set():
            raise Closed
        if self._failure is not None:
            if self._all_planned:  # so no exchange was left to report the failure in
                self._ports.announce(_abort(self._failure))
            raise self._failure

    def _guard(self, work: Callable[[], None]) -> None:
        """Runs the work of one thread; an error in it ends the other threads too."""
        try:
            work()
        except Closed:
            pass
        except EvenstepError as error:
            self._fail(error)
        except Exception as error:
            failure = LoaderDiedError(f"rank {self._spec.rank}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self._fail(failure)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error
        self._store.end(self._failure)

    # The four threads

    def _take_in(self, intake: Intake) -> None:
        try:
            with contextlib.closing(intake.chunks(self._epoch, self._worker_states)) as chunks:
                for chunk in chunks:
                    if (ready := self._checks.ready(chunk)) is not None:
                        self._store.put(ready)
        except (Closed, EvenstepError) as error:
            # Not a failure of the epoch yet: the samples before it may still be planned.
            self._store.end(error if isinstance(error, EvenstepError) else None)
        except Exception as error:
            failure = LoaderDiedError(f"rank {self._spec.rank}, preparing samples: {error}")
            failure.__cause__ = error
            self._store.end(failure)
        else:
            self._store.end()

    def _plan(self) -> None:
        try:
            while not self._planner.finished:
                self._planner.gather()
                if self._failure is not None:
                    raise self._failure
                for step in self._planner.exchange():
                    self._planned_steps.put(step)
        except (Closed, PeerError):
            raise  # no rank is left to report it to, or all know already
        except Exception as error:
            # In place of the message that is due, so that the other ranks learn of it at once.
            self._ports.exchange(_abort(error))
            raise
        else:
            self._all_planned = True
            # Under exhausted="stop" the source may have more samples, which nothing will use.
            self._store.stop()
        finally:
            self._planned_steps.put(None)
            self._planner.end_requests()

    def _collate(self) -> None:
        with ThreadPoolExecutor(self._spec.collate_threads, "evenstep-collate") as pool:
            try:
                while (step := self._planned_steps.get()) is not None:
                    self._ports.await_credit()
                    self._batches.put(pool.submit(self._make_batch, step))
            finally:
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
        for numbers in of_update.planned.micro_batches:
            samples, own = self._store.take(numbers)
            groups.append(samples)
            indices += own
        step, batch = make_step(
            self._spec,
            self._epoch.epoch,
            of_update,
            groups,
            indices,
            filler_sample=self._filler_sample.sample,
            seeds=self._seeds,
        )
        return step, batch, of_update.progress


def _abort(error: Exception) -> bytes:
    return abort_message(f"{type(error).__name__}: {error}")
