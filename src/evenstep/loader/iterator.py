"""One pass over a loader, in the trainer process."""

from __future__ import annotations

import dataclasses
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from evenstep.batch.step_info import StepInfo, attach_step
from evenstep.cost.vision_language import UNMEASURED
from evenstep.errors import (
    EvenstepError,
    LoaderDiedError,
    PeerError,
    described,
)
from evenstep.loader.batcher.batcher_handles import BatcherProcess, BatcherThread
from evenstep.loader.batcher.batcher_messages import (
    EpochEnd,
    EpochSpec,
    Observed,
    StepProgress,
)
from evenstep.loader.batcher.ports import BatcherFailure
from evenstep.loader.memory_watch import MemoryWatch
from evenstep.loader.own_time import OwnTime
from evenstep.loader.runtime import Feeder
from evenstep.loader.step_clock import StepClock
from evenstep.loader.transport.rank_exchange import RankExchange
from evenstep.loader.transport.session import Doing, Session
from evenstep.protocol.slow_ranks import UNTIMED
from evenstep.run_log import RunLog

_CHECK_INTERVAL = 0.25  # seconds between checks that all processes and threads live


@dataclass(frozen=True, kw_only=True)
class Observers:
    """Who is told of the steps of a pass."""

    received: Callable[[StepInfo, StepProgress], None]
    """Called with every step just before it is yielded."""
    ended: Callable[[EpochEnd], None]
    """Called once all ranks have yielded all steps."""
    run_log: RunLog | None = None
    clock: StepClock | None = None
    """Measures how long steps take."""
    memory: MemoryWatch | None = None
    """Finds out what fits in it."""
    own_time: OwnTime | None = None
    """Measures how long this rank takes by itself."""

    def note_request(self) -> None:
        """The trainer asks for a step."""
        for each in (self.run_log, self.clock, self.memory):
            if each is not None:
                each.note_request()

    def handed_out(self, step: StepInfo) -> StepInfo:
        """The step as it is yielded."""
        if self.clock is not None:
            step = self.clock.handed_out(step)
        if self.own_time is not None:
            step = self.own_time.handed_out(step)
        if self.run_log is not None:
            self.run_log.handed_out(step.to_line())
        return step

    def left(self) -> None:
        """The pass is over."""
        for each in (self.clock, self.memory, self.own_time):
            if each is not None:
                each.left()

    @property
    def measured(self) -> Observed:
        return (
            UNMEASURED if self.clock is None else self.clock.ratios,
            (0, 0) if self.memory is None else self.memory.found,
            UNTIMED if self.own_time is None else self.own_time.pace,
        )


class StepIterator(Iterator[tuple[Any, StepInfo]]):
    """Yields (batch, StepInfo). Any code may call `close` at any time, garbage collection
    included.

    It keeps the loader, one of its observers, as a loader without references closes itself.
    """

    def __init__(
        self,
        *,
        batcher: BatcherProcess | BatcherThread,
        keep_batcher: bool,
        exchange: RankExchange,
        feeder: Feeder | None,
        epoch: EpochSpec,
        pin_memory: bool,
        observers: Observers,
    ) -> None:
        self._batcher = batcher
        self._keep_batcher = keep_batcher
        self._exchange = exchange
        self._feeder = feeder
        self._pin_memory = pin_memory
        self._epoch = epoch
        self._observers = observers
        self._told: Observed = UNMEASURED, (0, 0), UNTIMED
        self._outcome: Exception | None = None  # raised by every further call
        self._owner = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        self._session = Session(
            batcher.exchange, epoch.serial, batcher.alive, batcher.cause_of_death
        )
        exchange.patience.trainer(Doing.WORKS, -1)
        batcher.begin(epoch)
        exchange.begin(self._session)

    def __iter__(self) -> StepIterator:
        return self

    def __next__(self) -> tuple[Any, StepInfo]:
        if self._outcome is not None:
            raise self._outcome
        self._observers.note_request()
        self._tell()
        patience = self._exchange.patience
        patience.trainer(Doing.WAITS)
        try:
            batch, step = self._next()
            patience.trainer(Doing.WORKS, step.step)
            return batch, self._observers.handed_out(step)
        except StopIteration:
            self._end(StopIteration())
            raise
        except EvenstepError as error:
            self._end(error)
            raise
        except BaseException as error:
            # Other ranks need no reason for an interrupt, just as for a pass that is left early.
            self._close(None if isinstance(error, KeyboardInterrupt) else described(error))
            raise

    def _tell(self) -> None:
        """Tells the batcher what was measured."""
        measured = self._observers.measured
        if measured != self._told:
            self._told = measured
            self._batcher.tell_measured(measured)

    def _next(self) -> tuple[Any, StepInfo]:
        while True:
            if self._exchange.failure is not None:
                # Other ranks may have left because this rank lost a message.
                raise self._session.broken or self._exchange.failure
            result = self._batcher.get(_CHECK_INTERVAL)
            if result is None:
                self._check_threads()
                continue
            if isinstance(result, BatcherFailure):
                known = self._session.broken or self._exchange.failure
                if isinstance(result.error, PeerError) and known is not None:
                    raise known
                result.reraise()
            if isinstance(result, EpochEnd):
                self._await_others()
                self._observers.ended(result)
                if result.undelivered:
                    warnings.warn(
                        f"epoch {self._epoch.epoch} ended with at least {result.undelivered} "
                        "samples of this rank not trained on, because another rank had none left "
                        '(exhausted="stop")',
                        stacklevel=4,
                    )
                raise StopIteration
            step, batch, progress = result
            self._batcher.credit()
            if self._pin_memory:
                batch = pin(batch)
            self._observers.received(step, progress)
            return batch, step

    def _check_threads(self) -> None:
        """Raises an error if a thread that the batcher waits for has failed."""
        if self._session.broken is not None:
            raise self._session.broken
        failed = self._feeder.failure if self._feeder is not None else None
        if failed is not None and self._batcher.alive():
            raise LoaderDiedError(f"the sampler's indices cannot be sent: {described(failed)}")

    def _await_others(self) -> None:
        """Waits until all ranks have made their last batch. So an epoch ends on all ranks or on
        none: every rank learns of a rank that fails at its last batch, and a rank that exits
        afterwards disturbs no other."""
        while not self._session.over.wait(_CHECK_INTERVAL):
            pass
        failure = self._session.broken or self._exchange.failure or self._session.failure
        if failure is not None:
            raise failure

    def _end(self, outcome: Exception) -> None:
        self._outcome = outcome
        # Tell the other ranks here too: once the pass is left, nobody may read what the batcher
        # said about its failure.
        known = isinstance(outcome, (StopIteration, PeerError))
        self._close(None if known else described(outcome))

    @property
    def closed(self) -> bool:
        """Whether the pass has ended or was abandoned."""
        return self._closed

    def close(self) -> None:
        """Abandons the pass and frees its processes, threads and memory. Idempotent."""
        self._close()

    def _close(self, reason: str | None = None) -> None:
        if self._owner != os.getpid():
            return  # a copy in a forked child, which must not close the parent's pass
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._exchange.patience.trainer(Doing.HAS_LEFT)
        self._observers.left()
        keep = self._keep_batcher and not isinstance(self._outcome, LoaderDiedError)
        if self._outcome is None:
            self._outcome = LoaderDiedError(
                f"this pass over epoch {self._epoch.epoch} was closed; iterate the loader again"
            )
        self._session.leave(reason)
        if self._feeder is not None:
            self._feeder.leave()
        try:
            self._batcher.abandon()
        finally:
            if not keep:
                self._batcher.close()

    def __del__(self) -> None:
        if hasattr(self, "_session"):  # else it was never started
            self.close()


class BatchIterator(Iterator[Any]):
    """Yields the batches of a `StepIterator`, with their `StepInfo` inside."""

    def __init__(self, steps: StepIterator) -> None:
        self._steps = steps

    def __next__(self) -> Any:
        batch, step = next(self._steps)
        attach_step(batch, step)
        return batch

    def close(self) -> None:
        self._steps.close()


def pin(batch: Any) -> Any:
    """The batch with every tensor in page-locked memory, for asynchronous copies to an accelerator.

    As in torch's DataLoader, containers are rebuilt, an object with a ``pin_memory`` method pins
    itself, and anything else stays.
    """
    if isinstance(batch, torch.Tensor) or hasattr(batch, "pin_memory"):
        return batch.pin_memory()
    if isinstance(batch, Mapping):
        pinned = {key: pin(value) for key, value in batch.items()}
        return pinned if type(batch) is dict else type(batch)(pinned)  # type: ignore[call-arg]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(pin(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(pin(value) for value in batch)
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        fields = {f.name: pin(getattr(batch, f.name)) for f in dataclasses.fields(batch) if f.init}
        return dataclasses.replace(batch, **fields)
    return batch
