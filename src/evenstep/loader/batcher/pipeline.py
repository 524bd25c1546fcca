"""The batcher: buffers samples, drives the protocol, plans and collates. One epoch of it.

Activities, each in a thread of its own, so that none waits for another without need::

    intake   workers ──chunks──▶ shelf                       holds back when the shelf is full
    plan     shelf ──lengths──▶ protocol ◀──exchange──▶ all ranks ──▶ planned steps
    collate  planned step ──▶ samples off the shelf ──collate_fn──▶ batch    holds back when
    deliver  batch ──▶ trainer, in order                                     the trainer lags

The shelf holds at most two windows: one that is being planned or filled and one whose steps are
being trained on, so the window refills while the trainer works.

What is planned depends on the samples and their order alone, never on the time anything took: the
protocol takes samples in order and plans only when its window is full or the source has ended.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from evenstep.batch.step_info import StepInfo
from evenstep.errors import (
    EvenstepError,
    LoaderDiedError,
    MismatchError,
    PeerError,
)
from evenstep.loader.batcher.batch_assembly import make_step
from evenstep.loader.batcher.filler_sample import FillerSample, pack_sample
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.progress import BadSample, RoundProgress, StepProgress
from evenstep.loader.batcher.reception import Reception
from evenstep.loader.batcher.sample_store import Closed, SampleStore
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.transport.cp_peers import WindowChecksum
from evenstep.loader.workers.iterable import WorkerStateLog
from evenstep.plan.offline.replay import ReplayPolicy
from evenstep.protocol import RankProtocol
from evenstep.protocol.planned_step import PlannedStep
from evenstep.protocol.wire import abort_message

__all__ = ["End", "EpochRun", "Ports"]


@dataclass(frozen=True)
class End:
    """A pass is complete."""

    undelivered: int
    """Samples that were received and not trained on, because ``exhausted="stop"`` ended it."""
    bad: tuple[BadSample, ...]
    """Samples left out since the last round began."""


class Ports(Protocol):
    """How an epoch reaches the trainer process. Every call may raise `Closed`."""

    def exchange(self, message: bytes) -> list[bytes]:
        """All ranks' messages, in rank order; empty for a rank that has left."""

    def await_credit(self) -> None:
        """Returns when the trainer has room for one more finished step."""

    def end_delivery(self) -> None:
        """No more steps will be delivered: `await_credit` raises `Closed` from now on."""

    def tell(self, message: bytes) -> None:
        """Sends all ranks a message after the last exchange, and awaits no answer."""

    def deliver(self, step: StepInfo, batch: Any, mark: StepProgress) -> None:
        """Hands a finished step to the trainer."""


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
        policy = spec.policy
        if epoch.expected is not None:
            policy = ReplayPolicy(policy, epoch.expected.ends)
        self._protocol = RankProtocol(
            policy=policy,
            rank=spec.rank,
            world_size=spec.world_size,
            buffer_size=spec.buffer_size,
            exhausted=spec.exhausted,
            seed=spec.seed,
            epoch=epoch.epoch,
            share=epoch.share,
            start=epoch.start,
            # Samples of the window that is gone on with are prepared again.
            has_spare=bool((epoch.remaining.numbers < epoch.start.taken).any()),
            options={
                **spec.compared,
                "steps received before": epoch.received,
                "what is left of the epoch": epoch.left,
            },
        )
        self._to_skip = epoch.received
        self._seeds = seeds
        self._shelf = SampleStore(2 * self._protocol.window_size)
        self._spare = FillerSample()
        self._witness = WindowChecksum()
        self._trail = (
            WorkerStateLog(max(spec.num_workers, 1), epoch.sources) if spec.iterable else None
        )
        self._reception = Reception(spec, epoch, self._spare)
        self._steps: queue.SimpleQueue[tuple[PlannedStep, StepProgress] | None] = (
            queue.SimpleQueue()
        )
        self._finished: queue.SimpleQueue[Future[tuple[StepInfo, Any, StepProgress]] | None] = (
            queue.SimpleQueue()
        )
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._planned = False

    def end(self) -> End:
        """How the epoch ended, once `run` has returned."""
        return End(self._protocol.undelivered, self._reception.bad_before())

    def close(self) -> None:
        """Makes `run` return soon. Any thread may call it."""
        self._closed.set()
        self._shelf.close()
        self._steps.put(None)

    def run(self, intake: Intake) -> None:
        """Works through an epoch.

        Raises:
            EvenstepError: what went wrong, here or on another rank; raised once every step settled
                before it has been delivered, so that all ranks get equally many.
            Closed: `close` was called.
        """
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
            if self._planned:  # so no message was due in which the others would have learned of it
                self._ports.tell(_abort(self._failure))
            raise self._failure

    def _guard(self, work: Callable[[], None]) -> None:
        """Runs one activity; what it raises ends the others too."""
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
        self._shelf.end(self._failure)

    # Intake

    def _take_in(self, intake: Intake) -> None:
        try:
            with contextlib.closing(intake.chunks(self._epoch, self._trail)) as chunks:
                for arrival in chunks:
                    if (received := self._reception.open(arrival)) is not None:
                        self._shelf.put(received)
        except (Closed, EvenstepError) as error:
            # Not a failure of the epoch yet: what came before may still be planned.
            self._shelf.end(error if isinstance(error, EvenstepError) else None)
        except Exception as error:
            failure = LoaderDiedError(f"rank {self._spec.rank}, preparing samples: {error}")
            failure.__cause__ = error
            self._shelf.end(failure)
        else:
            self._shelf.end()

    # Planning

    def _plan(self) -> None:
        protocol = self._protocol
        try:
            while not protocol.finished:
                while protocol.wanted:
                    arrived = self._shelf.next_arrived()
                    if arrived is None:
                        protocol.end_of_source()
                    else:
                        protocol.receive(arrived.columns, arrived.numbers)
                        if arrived.digests is not None:
                            self._witness.note(arrived.numbers, arrived.digests)
                if (number := protocol.lends) is not None:
                    protocol.lend(self._lendable(number))
                if self._failure is not None:
                    raise self._failure
                message = protocol.outgoing()
                if self._spec.policy.context_parallel > 1:
                    message = self._witness.sign(message, protocol.taken)
                steps = protocol.incoming(self._ports.exchange(message))
                self._spare.borrow(protocol.borrowed)
                if steps:
                    self._begin_round(steps)
        except (Closed, PeerError):
            raise  # nobody to tell, or the others know already
        except Exception as error:
            # In place of the message that is due, so that the others learn of it at once.
            self._ports.exchange(_abort(error))
            raise
        else:
            self._planned = True
            # Under exhausted="stop" the source may have more, which nobody will take.
            self._shelf.stop()
        finally:
            self._steps.put(None)

    def _lendable(self, number: int) -> bytes:
        start, remaining = self._epoch.start, self._epoch.remaining.numbers
        if number < start.taken and number not in remaining:
            # It was trained on before: the shortest of the round that was not takes its place.
            left = np.flatnonzero(np.isin(start.numbers, remaining))
            if not len(left):
                return b""  # and nobody needs one in this round
            number = int(start.numbers[left[start.columns[0, left].argmin()]])
        return pack_sample(self._shelf.peek(number))

    def _begin_round(self, steps: list[PlannedStep]) -> None:
        """Passes the steps of a round on, but for those that the trainer has had before."""
        start = steps[0].round.start
        skip, self._to_skip = self._to_skip, 0
        trained = np.concatenate([np.empty(0, np.int64), *(s.members for s in steps[:skip])])
        untrained = np.setdiff1d(start.numbers, trained)
        if skip:
            remaining = self._epoch.remaining.numbers
            expected = remaining[remaining < start.taken]
            if skip > len(steps) or not np.array_equal(untrained, expected):
                raise MismatchError(
                    f"round {start.round} of epoch {self._epoch.epoch} is planned differently than "
                    "when the checkpoint was made, by another version of evenstep, NumPy or the "
                    "policy; use that version, or go on with evenstep.merge_states of all ranks' "
                    "states, which forms new batches"
                )
        sources = None
        if self._trail is not None:
            needed = int(untrained[0]) if len(untrained) else start.taken
            sources = self._trail.since(self._epoch.remaining.place_of(needed))
        bad = self._reception.bad_before(start.taken)
        begins: RoundProgress | None = RoundProgress(start, trained, sources, bad)
        for step in steps[skip:]:
            self._steps.put((step, StepProgress(step.members, begins)))
            begins = None

    # Output

    def _collate(self) -> None:
        with ThreadPoolExecutor(self._spec.collate_threads, "evenstep-collate") as pool:
            try:
                while (step := self._steps.get()) is not None:
                    self._ports.await_credit()
                    self._finished.put(pool.submit(self._finish, *step))
            finally:
                self._finished.put(None)

    def _deliver(self) -> None:
        try:
            while (future := self._finished.get()) is not None:
                self._ports.deliver(*future.result())
        finally:
            # After a failure the trainer takes no more steps, so it would give no more credits.
            self._ports.end_delivery()

    def _finish(
        self, planned: PlannedStep, mark: StepProgress
    ) -> tuple[StepInfo, Any, StepProgress]:
        groups: list[list[Any]] = []
        indices: tuple[Any, ...] = ()
        for numbers in planned.micro_batches:
            samples, own = self._shelf.take(numbers)
            groups.append(samples)
            indices += own
        step, batch = make_step(
            self._spec,
            self._epoch.epoch,
            planned,
            groups,
            indices,
            spare=self._spare.sample,
            seeds=self._seeds,
        )
        return step, batch, mark


def _abort(error: Exception) -> bytes:
    return abort_message(f"{type(error).__name__}: {error}")
