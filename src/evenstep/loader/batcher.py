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
import copy
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np

from evenstep.batch.check import check_supervised
from evenstep.batch.loss_scale import loss_scale
from evenstep.batch.step_info import StepInfo
from evenstep.errors import CollateError, EvenstepError, LoaderDiedError, PeerError, SampleError
from evenstep.loader import codec
from evenstep.loader.arena import Packed, Reader
from evenstep.loader.intake import Arrival
from evenstep.loader.spec import EpochSpec, LoaderSpec
from evenstep.messages import abort_message
from evenstep.protocol import PlannedStep, RankProtocol

__all__ = ["Closed", "EpochRun", "Ports"]


class Closed(Exception):
    """The trainer has left this epoch: stop working on it."""


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

    def deliver(self, step: StepInfo, batch: Any) -> None:
        """Hands a finished step to the trainer."""


class _Shelf:
    """Samples that have arrived and are not collated yet, by arrival number. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._samples: dict[int, tuple[Any, Any]] = {}  # arrival number -> (sample, index)
        self._new: deque[np.ndarray] = deque()
        self._arrived = 0
        self._ended = False
        self._closed = False
        self._failure: Exception | None = None

    def put(self, samples: list[Any], arrival: Arrival) -> None:
        """Adds a chunk, once there is room for it."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._samples) < self._limit)
            if self._ended:
                raise Closed
            indices = arrival.indices or [None] * len(samples)
            for number, pair in enumerate(zip(samples, indices, strict=True), self._arrived):
                self._samples[number] = pair
            self._arrived += len(samples)
            self._new.append(arrival.chunk.columns)
            self._changed.notify_all()

    def end(self, failure: Exception | None = None) -> None:
        """No more chunks are taken, because of `failure` if there was one."""
        with self._changed:
            self._ended, self._failure = True, self._failure or failure
            self._changed.notify_all()

    def next_columns(self) -> np.ndarray | None:
        """Columns of the next chunk, or None at the end. Raises what ended the intake early."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._new or self._ended)
            if self._closed:
                raise Closed
            if self._new:
                return self._new.popleft()
            if self._failure is not None:
                raise self._failure
            return None

    def take(self, numbers: np.ndarray) -> tuple[list[Any], tuple[Any, ...]]:
        """Removes samples and gives them with their dataset indices."""
        with self._changed:
            pairs = [self._samples.pop(number) for number in numbers.tolist()]
            self._changed.notify_all()
        return [sample for sample, _ in pairs], tuple(index for _, index in pairs)

    def close(self) -> None:
        with self._changed:
            self._ended = self._closed = True
            self._samples.clear()
            self._changed.notify_all()


class _Spare:
    """The shortest sample seen so far: what a filler step trains on."""

    def __init__(self) -> None:
        self._length: int | None = None
        self._packed: tuple[bytes, list[bytearray]] | None = None

    def offer(self, samples: list[Any], lengths: np.ndarray) -> None:
        best = int(np.argmin(lengths))
        if self._length is None or lengths[best] < self._length:
            self._length = int(lengths[best])
            data, buffers = codec.dumps(samples[best])
            # A copy of its own: the sample's memory must go back to the worker.
            self._packed = data, [bytearray(buffer) for buffer in buffers]

    def sample(self) -> Any:
        if self._packed is None:
            raise SampleError(
                "this rank has no sample at all, so it has nothing to fill steps with; give every "
                'rank at least one sample, or use exhausted="stop"'
            )
        return codec.loads(self._packed[0], copy.deepcopy(self._packed[1]))


class EpochRun:
    """One epoch on one rank. `run` works in the calling thread until all is delivered."""

    def __init__(self, spec: LoaderSpec, epoch: EpochSpec, ports: Ports) -> None:
        self._spec = spec
        self._epoch = epoch
        self._ports = ports
        self._protocol = RankProtocol(
            policy=spec.policy,
            rank=spec.rank,
            world_size=spec.world_size,
            buffer_size=spec.buffer_size,
            exhausted=spec.exhausted,
            seed=spec.seed,
            epoch=epoch.epoch,
            options=spec.compared,
        )
        self._shelf = _Shelf(2 * self._protocol.window_size)
        self._spare = _Spare()
        self._steps: queue.SimpleQueue[PlannedStep | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[Future[tuple[StepInfo, Any]] | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._planned = False
        self._fills_steps = spec.world_size > 1 and spec.exhausted == "pad"

    @property
    def undelivered(self) -> int:
        """Samples that were received and not trained on, because ``exhausted="stop"`` ended it."""
        return self._protocol.undelivered

    def close(self) -> None:
        """Makes `run` return soon. Any thread may call it."""
        self._closed.set()
        self._shelf.close()
        self._steps.put(None)

    def run(self, chunks: Generator[Arrival, None, None]) -> None:
        """Works through an epoch.

        Raises:
            EvenstepError: what went wrong, here or on another rank; raised once every step settled
                before it has been delivered, so that all ranks get equally many.
            Closed: `close` was called.
        """
        threads = [
            threading.Thread(
                target=self._guard, args=(work,), name=f"evenstep{work.__name__}", daemon=True
            )
            for work in (self._plan, self._collate, self._deliver)
        ]
        for thread in threads:
            thread.start()
        self._guard(lambda: self._take_in(chunks))
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

    def _take_in(self, chunks: Generator[Arrival, None, None]) -> None:
        reader = Reader()
        try:
            with contextlib.closing(chunks):
                for arrival in chunks:
                    payload = arrival.chunk.payload
                    samples = reader.unpack(payload) if isinstance(payload, Packed) else payload
                    if self._fills_steps:
                        self._spare.offer(samples, arrival.chunk.columns[:, 0])
                    if not arrival.spare:
                        self._shelf.put(samples, arrival)
        except (Closed, EvenstepError) as error:
            # Not a failure of the epoch yet: what came before may still be planned.
            self._shelf.end(error if isinstance(error, EvenstepError) else None)
        except Exception as error:
            failure = LoaderDiedError(f"rank {self._spec.rank}, preparing samples: {error}")
            failure.__cause__ = error
            self._shelf.end(failure)
        else:
            self._shelf.end()

    def _plan(self) -> None:
        protocol = self._protocol
        try:
            while not protocol.finished:
                while protocol.wanted:
                    columns = self._shelf.next_columns()
                    if columns is None:
                        protocol.end_of_source()
                    else:
                        protocol.receive(columns)
                if self._failure is not None:
                    raise self._failure
                for step in protocol.incoming(self._ports.exchange(protocol.outgoing())):
                    self._steps.put(step)
        except (Closed, PeerError):
            raise  # nobody to tell, or the others know already
        except Exception as error:
            # In place of the message that is due, so that the others learn of it at once.
            self._ports.exchange(_abort(error))
            raise
        else:
            self._planned = True
            # Under exhausted="stop" the source may have more, which nobody will take.
            self._shelf.end()
        finally:
            self._steps.put(None)

    def _collate(self) -> None:
        with ThreadPoolExecutor(self._spec.collate_threads, "evenstep-collate") as pool:
            try:
                while (step := self._steps.get()) is not None:
                    self._ports.await_credit()
                    self._finished.put(pool.submit(self._finish, step))
            finally:
                self._finished.put(None)

    def _deliver(self) -> None:
        try:
            while (future := self._finished.get()) is not None:
                self._ports.deliver(*future.result())
        finally:
            # After a failure the trainer takes no more steps, so it would give no more credits.
            self._ports.end_delivery()

    def _finish(self, planned: PlannedStep) -> tuple[StepInfo, Any]:
        spec = self._spec
        if planned.filler:
            samples, indices = [self._spare.sample()], ()
        else:
            samples, indices = self._shelf.take(planned.members)
        where = f"step {planned.index} of epoch {self._epoch.epoch} on rank {spec.rank}"
        try:
            batch = spec.collate_fn(samples)
        except EvenstepError:
            raise
        except Exception as error:
            raise CollateError(
                f"collate_fn raised {type(error).__name__} at {where}, samples {list(indices)}: "
                f"{error}"
            ) from error
        totals = planned.totals
        if spec.loss_scaling == "token" and not planned.filler:
            check_supervised(batch, int(totals.supervised_tokens[spec.rank]), where)
        step = StepInfo(
            epoch=self._epoch.epoch,
            step=planned.index,
            rank=spec.rank,
            world_size=spec.world_size,
            filler=planned.filler,
            indices=None if spec.iterable else indices,
            totals=totals,
            loss_scale=loss_scale(
                totals, spec.rank, spec.loss_scaling, mean_supervised=planned.mean_supervised
            ),
        )
        return step, batch


def _abort(error: Exception) -> bytes:
    return abort_message(f"{type(error).__name__}: {error}")
