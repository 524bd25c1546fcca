"""The batcher as a process of its own, between the workers and the trainer.

The process ends when the trainer closes it, or when the trainer is gone: it watches its parent, and
ends its workers when it ends. What it cannot recover from (no memory for a message, no room for a
thread) ends it too: its end is noticed by the trainer and by all ranks, where a process that lives
on without one of its threads is waited for.

`BatcherProcess` and `start_batcher` run in the trainer; the rest of this file in the batcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import multiprocessing
import multiprocessing.connection
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

import torch

from evenstep.batch.memory import borrowing
from evenstep.batch.step_info import StepInfo
from evenstep.errors import CollateError, EvenstepError, LoaderDiedError, described
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.progress import EpochEnd
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.shared_memory import PackedObject, Reader, Writer
from evenstep.loader.watchdog import Watchdog
from evenstep.processes import end_now, end_with_parent, kill_children
from evenstep.protocol.wire import abort_message

_ANY = -1  # in place of a pass's serial number: of whichever pass it is

LOST = 255  # exit code of a process whose fork server died, so that nobody knows its own
_GRACE = 2.0  # seconds in which workers may finish their current sample once the trainer has left


@dataclass(frozen=True)
class BatcherPipes:
    """The batcher's ends of its pipes."""

    control: Connection
    """In: passes to begin or abandon, and credits."""
    feed: Connection
    """In: blocks of dataset indices. Out: which samples of the ranks' stream to send next."""
    exchange: Connection
    """Both ways: messages to and from all ranks."""
    results: Connection
    """Out: finished steps, and how the pass ended."""


class BatcherProcess:
    """The trainer's handle on its batcher process. All passes of a loader may share it."""

    def __init__(self, spec: LoaderSpec, start: Callable[[LoaderSpec, BatcherPipes], Any]) -> None:
        """
        Args:
            start: starts the process and returns it: `start_batcher`, or one like it.
        """
        try:
            batcher_control, self._control = multiprocessing.Pipe(duplex=False)
            batcher_feed, self.feed = multiprocessing.Pipe()
            self._results, batcher_results = multiprocessing.Pipe(duplex=False)
            self.exchange, batcher_exchange = multiprocessing.Pipe()
            pipes = BatcherPipes(batcher_control, batcher_feed, batcher_exchange, batcher_results)
            self._process = start(spec, pipes)
        except (OSError, MemoryError) as error:
            raise LoaderDiedError(
                f"the batcher process of rank {spec.rank} could not be started "
                f"({described(error)}); raise the limits on processes (ulimit -u) and open files "
                "(ulimit -n), or give the job more memory"
            ) from error
        # Before multiprocessing waits for it to end, for ever if nobody has told it to.
        Finalize(self, _kill, (self._process,), exitpriority=99)
        # Only the batcher may hold its ends, or its death would close no pipe and go unnoticed.
        for connection in (batcher_control, batcher_feed, batcher_exchange, batcher_results):
            connection.close()
        self._rank = spec.rank
        self._reader = Reader()
        self._serial = -1
        self._torn = False
        """A result was read in part, so the next one cannot be found."""

    def begin(self, epoch: EpochSpec) -> None:
        self._serial = epoch.serial
        self._command("begin", epoch)

    def credit(self) -> None:
        self._command("credit", self._serial)

    def abandon(self) -> None:
        """Leaves the current pass; the process stays for the next one."""
        self._ask("abandon")

    def _command(self, command: str, value: Any) -> None:
        with contextlib.suppress(OSError):  # it died; `get` reports that
            self._control.send((command, value))

    def _ask(self, command: str) -> None:
        """Asks the process to end something. One that cannot be asked is killed."""
        try:
            self._command(command, self._serial)
        except MemoryError:
            self._torn = True
        if self._torn:
            self._process.kill()

    def get(self, timeout: float) -> Any:
        """The next result of the current pass: (StepInfo, batch, StepProgress), `EpochEnd` or
        `BatcherFailure`; None if none comes within `timeout` seconds.

        Raises:
            LoaderDiedError: the process is gone.
        """
        deadline = time.monotonic() + timeout
        while True:
            # Checked before reading: results that it sent before it died still count.
            alive = self.alive()
            try:
                if self._results.poll(max(deadline - time.monotonic(), 0) if alive else 0):
                    self._torn = True
                    serial, result = self._results.recv()
                    self._torn = False
                    if isinstance(result, tuple):
                        step, packed, progress = result
                        result = (step, self._unpacked(step, packed), progress)
                    if serial in (self._serial, _ANY):
                        return result
                    continue
            except (EOFError, OSError):
                raise LoaderDiedError(self.cause_of_death()) from None
            if not alive:
                raise LoaderDiedError(self.cause_of_death())
            if time.monotonic() >= deadline:
                return None

    def _unpacked(self, step: StepInfo, packed: PackedObject) -> Any:
        try:
            return self._reader.unpack(packed)
        except (EvenstepError, ProcessLookupError):  # the batcher has died
            raise
        except Exception as error:
            raise CollateError(
                f"step {step.step} of epoch {step.epoch} on rank {step.rank}: the unpickling of "
                f"its batch raised {described(error)}"
            ) from error

    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def cause_of_death(self) -> str:
        """How the process ended, once it is gone."""
        deadline = time.monotonic() + 1.0
        # Another thread may just have collected the exit code without having stored it yet.
        while (code := self._process.exitcode) is None and time.monotonic() < deadline:
            self._process.join(0.05)
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
            else "ended, since the fork server that it came from was killed"
            if code == LOST
            else f"ended with exit code {code}"
        )
        return (
            f"the batcher process of rank {self._rank} (process {self._process.pid}) {how}; if the "
            "system ran out of memory, lower buffer_size, prefetch or num_workers"
        )

    def close(self) -> None:
        """Ends the process; returns when it is gone."""
        self._ask("close")
        self._drain(time.monotonic() + _GRACE + 5)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()
        # The pipes are left to garbage collection: another thread may still be using one.

    def _drain(self, deadline: float) -> None:
        """Waits for the process to end. It cannot end while it is blocked on a full pipe, so the
        results that it still sends are read and dropped."""
        sources: list[Any] = [self._process.sentinel, self._results]
        # Its workers hold the sentinel too, so the process itself is checked.
        while self.alive() and time.monotonic() < deadline:
            if self._results in multiprocessing.connection.wait(sources, timeout=0.1):
                try:
                    self._results.recv_bytes()
                except Exception:  # it is at its end, or torn
                    sources.remove(self._results)


def start_batcher(spec: LoaderSpec, pipes: BatcherPipes) -> Any:
    """Starts a batcher by the start method of its workers."""
    context: Any = multiprocessing.get_context(spec.start_method)
    # Not a daemon: those may not have children, and this one has the workers.
    process = context.Process(
        target=run_batcher, args=(spec, pipes), name="evenstep-batcher", daemon=False
    )
    process.start()
    return process


# Inside the process


def run_batcher(spec: LoaderSpec, pipes: BatcherPipes) -> None:
    # Ctrl-C reaches the whole process group; the trainer decides how to react.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Garbage of the trainer, whose finalizers must not run here too: that of a store's connection
    # takes the store away from all ranks.
    gc.freeze()
    try:
        end_with_parent()
        torch.set_num_threads(1)
        _Main(spec, pipes).run()
    except BaseException as error:
        try:
            died = LoaderDiedError(f"the batcher process of rank {spec.rank}: {described(error)}")
            pipes.results.send((_ANY, BatcherFailure(died, traceback.format_exc())))
        except BaseException:
            traceback.print_exc()
        finally:
            end_now()


class _Main:
    """The main thread runs one pass after the other; a control thread obeys the trainer."""

    def __init__(self, spec: LoaderSpec, pipes: BatcherPipes) -> None:
        self._spec = spec
        self._pipes = pipes
        self._writer = Writer()
        self._lock = threading.Lock()
        self._begun: queue.SimpleQueue[EpochSpec | None] = queue.SimpleQueue()
        self._current: tuple[int, EpochRun, PipePorts] | None = None  # the pass, by serial number
        self._abandoned = -1  # serial number of the latest pass that the trainer has left
        self._done = threading.Event()
        self._sending = threading.Lock()
        self._watchdog = Watchdog(spec.timeout, spec.rank)
        self._hangs = False

    def run(self) -> None:
        control = GuardedThread(self._obey, name="control", failed=self._lost)
        control.start()
        if self._spec.timeout:
            GuardedThread(self._watchdog.watch, self._report, name="watchdog").start()
        intake = Intake(self._spec, self._pipes.feed)
        while (epoch := self._begun.get()) is not None:
            self._pass(intake, epoch)
        del intake  # ends the workers
        self._done.set()
        if control.failure is not None:
            raise control.failure

    def _pass(self, intake: Intake, epoch: EpochSpec) -> None:
        results, writer = self._pipes.results, self._writer

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
            with self._sending:
                results.send((epoch.serial, (step, packed, progress)))

        ports = PipePorts(self._pipes.exchange, epoch.serial, self._spec.prefetch, send)
        spec, seeds = self._spec_with(writer), self._spec.collate_threads == 1
        try:
            run = EpochRun(spec, epoch, ports, seeds=seeds, watchdog=self._watchdog)
        except BaseException as error:  # of the policy
            ports.announce(abort_message(described(error)))
            raise
        with self._lock:
            self._current = (epoch.serial, run, ports)
            if self._abandoned >= epoch.serial:
                return
        end: EpochEnd | BatcherFailure
        try:
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

    def _spec_with(self, writer: Writer) -> LoaderSpec:
        """The spec, with a collate function that may build its batch in `writer`'s memory."""

        def collate(samples: list[Any]) -> Any:
            with borrowing(writer.lend):
                return self._spec.collate_fn(samples)

        return dataclasses.replace(self._spec, collate_fn=collate)

    def _obey(self) -> None:
        """Obeys the trainer's commands while the main thread runs a pass."""
        while True:
            try:
                command, value = self._pipes.control.recv()
            except (EOFError, OSError):  # the trainer is gone
                command, value = "close", None
            if command == "begin":
                self._begun.put(value)
                continue
            with self._lock:
                current = self._current
                if command == "abandon":
                    self._abandoned = max(self._abandoned, value)
                elif command == "close":
                    self._abandoned = 1 << 62
            if command == "credit":
                if current and current[0] == value:
                    current[2].credit()
                continue
            if current and current[0] <= self._abandoned:
                current[1].close()
                current[2].close()
            if command == "close":
                self._begun.put(None)
                # A worker may be busy with a slow sample that is no longer needed.
                if self._hangs:
                    end_now()
                if not self._done.wait(_GRACE):
                    kill_children()
                return

    def _report(self, error: LoaderDiedError, stacks: str) -> None:
        """Tells the trainer of a call that hangs, as the thread that runs it cannot."""
        self._hangs = True
        with self._sending:
            self._pipes.results.send((_ANY, BatcherFailure(error, stacks)))

    def _lost(self, error: BaseException) -> None:
        """The trainer can no longer be heard, so this process ends."""
        with self._lock:
            current = self._current
        if current:
            current[1].fail(error)
            current[2].end_delivery()
        self._begun.put(None)
        if not self._done.wait(_GRACE):
            end_now()


def _kill(process: Any) -> None:
    if process.is_alive():
        process.kill()
