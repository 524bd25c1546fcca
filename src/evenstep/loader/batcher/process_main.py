"""What runs in a batcher process, which stands between the workers and the trainer.

The process ends when the trainer closes it, or when the trainer is gone: it watches its parent, and
ends its workers when it ends. What it cannot recover from (no memory for a message, no room for a
thread) ends it too: its end is noticed by the trainer and by all ranks, where a process that lives
on without one of its threads is waited for.
"""

from __future__ import annotations

import contextlib
import gc
import queue
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch

from evenstep.errors import CollateError, EvenstepError, LoaderDiedError, described
from evenstep.loader.batcher.batcher_messages import EpochEnd, EpochSpec, LoaderSpec
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.shared_memory import Writer
from evenstep.processes import end_now, end_with_parent, kill_children
from evenstep.protocol.wire import abort_message

ANY_PASS = -1
"""In place of a pass's serial number: of whichever pass it is."""
GRACE = 2.0
"""Seconds in which workers may finish their current sample once the trainer has left."""


def run_batcher(
    spec: LoaderSpec,
    control: Connection,
    feed: Connection,
    exchange: Connection,
    results: Connection,
) -> None:
    """
    Args:
        control: in: passes to begin or abandon, and credits.
        feed: in: blocks of dataset indices. Out: which samples of the ranks' stream to send next.
        exchange: both ways: messages to and from all ranks.
        results: out: finished steps, and how the pass ended.
    """
    # Ctrl-C reaches the whole process group; the trainer decides how to react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Garbage of the trainer, whose finalizers must not run here too: that of a store's connection
    # takes the store away from all ranks.
    gc.freeze()
    try:
        end_with_parent()
        torch.set_num_threads(1)
        _Main(spec, control, feed, exchange, results).run()
    except BaseException as error:
        try:
            died = LoaderDiedError(f"the batcher process of rank {spec.rank}: {described(error)}")
            results.send((ANY_PASS, BatcherFailure(died, traceback.format_exc())))
        except BaseException:
            traceback.print_exc()
        finally:
            end_now()


class _Main:
    """The main thread runs one pass after the other; a control thread obeys the trainer."""

    def __init__(self, spec: LoaderSpec, *ends: Connection) -> None:
        self._spec = spec
        self._control, self._feed, self._exchange, self._results = ends
        self._writer = Writer()
        self._lock = threading.Lock()
        self._passes: queue.SimpleQueue[EpochSpec | None] = queue.SimpleQueue()
        self._current: tuple[int, EpochRun, PipePorts] | None = None  # the pass, by serial number
        self._abandoned = -1  # serial number of the latest pass that the trainer has left
        self._done = threading.Event()

    def run(self) -> None:
        control = GuardedThread(self._obey, name="control", failed=self._lost)
        control.start()
        intake = Intake(self._spec, self._feed)
        while (epoch := self._passes.get()) is not None:
            self._pass(intake, epoch)
            if self._current is not None:
                self._current[2].await_answer()
        del intake  # ends the workers
        self._done.set()
        if control.failure is not None:
            raise control.failure

    def _pass(self, intake: Intake, epoch: EpochSpec) -> None:
        results, writer = self._results, self._writer

        def send(result: Any) -> None:
            step, batch, progress = result
            try:
                packed = writer.pack(batch)
            except EvenstepError:
                raise
            except BaseException as error:
                raise CollateError(
                    f"step {step.step} of epoch {step.epoch} on rank {step.rank}: the pickling of "
                    f"its batch raised {described(error)}"
                ) from error
            results.send((epoch.serial, (step, packed, progress)))

        ports = PipePorts(self._exchange, epoch.serial, self._spec.memory.prefetch, send)
        seeds = self._spec.collate_threads == 1
        try:
            run = EpochRun(self._spec, epoch, ports, intake.feed, seeds=seeds)
        except BaseException as error:  # of the policy
            ports.announce(abort_message(described(error)))
            raise
        end: EpochEnd | BatcherFailure
        try:
            with self._lock:
                self._current = (epoch.serial, run, ports)
                if self._abandoned >= epoch.serial:
                    return
            run.run(intake)
            end = run.end()
        except Closed:
            return
        except EvenstepError as error:
            end = BatcherFailure(error, traceback.format_exc())
        finally:
            ports.finish()
        with contextlib.suppress(OSError):  # the trainer has closed its end
            results.send((epoch.serial, end))

    def _obey(self) -> None:
        """Obeys the trainer's commands while the main thread runs a pass."""
        while True:
            try:
                command, value = self._control.recv()
            except (EOFError, OSError):  # the trainer is gone
                command, value = "close", None
            if command == "begin":
                self._passes.put(value)
                continue
            with self._lock:
                current = self._current
                if command == "abandon":
                    self._abandoned = max(self._abandoned, value)
                elif command == "close":
                    self._abandoned = 1 << 62
            if command == "measured":
                if current and current[0] == value[0]:
                    current[2].measured = value[1]
                continue
            if command == "credit":
                if current and current[0] == value:
                    current[2].credit()
                continue
            if current and current[0] <= self._abandoned:
                current[1].close()
                current[2].close(ends=command == "close")
            if command == "close":
                self._passes.put(None)
                # A worker may be busy with a slow sample that is no longer needed.
                if not self._done.wait(GRACE):
                    kill_children()
                return

    def _lost(self, error: BaseException) -> None:
        """The trainer can no longer be heard, so this process ends."""
        with self._lock:
            current = self._current
        if current:
            current[1].fail(error)
            current[2].end_delivery()
        self._passes.put(None)
        if not self._done.wait(GRACE):
            end_now()
