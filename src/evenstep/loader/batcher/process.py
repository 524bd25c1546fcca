"""The batcher as a process of its own, between the workers and the trainer.

The process ends when the trainer closes it, or when the trainer is gone: it watches its parent, and
ends its workers when it ends. `BatcherProcess` and `start_batcher` run in the trainer; the rest of
this file in the batcher.
"""

from __future__ import annotations

import contextlib
import dataclasses
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
from typing import Any

import torch

from evenstep.batch.memory import borrowing
from evenstep.errors import LoaderDiedError
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.progress import EpochEnd
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.transport.shared_memory import Reader, Writer
from evenstep.processes import end_with_parent, kill_children

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
        batcher_control, self._control = multiprocessing.Pipe(duplex=False)
        batcher_feed, self.feed = multiprocessing.Pipe()
        self._results, batcher_results = multiprocessing.Pipe(duplex=False)
        self.exchange, batcher_exchange = multiprocessing.Pipe()
        pipes = BatcherPipes(batcher_control, batcher_feed, batcher_exchange, batcher_results)
        self._process = start(spec, pipes)
        # Only the batcher may hold its ends, or its death would close no pipe and go unnoticed.
        for connection in (batcher_control, batcher_feed, batcher_exchange, batcher_results):
            connection.close()
        self._rank = spec.rank
        self._reader = Reader()
        self._serial = -1

    def begin(self, epoch: EpochSpec) -> None:
        self._serial = epoch.serial
        self._command("begin", epoch)

    def credit(self) -> None:
        self._command("credit", self._serial)

    def abandon(self) -> None:
        """Leaves the current pass; the process stays for the next one."""
        self._command("abandon", self._serial)

    def _command(self, command: str, value: Any) -> None:
        with contextlib.suppress(OSError):  # it died; `get` reports that
            self._control.send((command, value))

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
                    serial, result = self._results.recv()
                    if isinstance(result, tuple):
                        step, packed, progress = result
                        result = (step, self._reader.unpack(packed), progress)
                    if serial == self._serial:
                        return result
                    continue
            except (EOFError, OSError):
                raise LoaderDiedError(self.cause_of_death()) from None
            if not alive:
                raise LoaderDiedError(self.cause_of_death())
            if time.monotonic() >= deadline:
                return None

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
        self._command("close", None)
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
                except (EOFError, OSError):
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
    end_with_parent()
    torch.set_num_threads(1)
    _Main(spec, pipes).run()


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

    def run(self) -> None:
        threading.Thread(target=self._obey, name="evenstep-control", daemon=True).start()
        intake = Intake(self._spec, self._pipes.feed)
        while (epoch := self._begun.get()) is not None:
            self._pass(intake, epoch)
        del intake  # ends the workers
        self._done.set()

    def _pass(self, intake: Intake, epoch: EpochSpec) -> None:
        results, writer = self._pipes.results, self._writer

        def send(result: Any) -> None:
            step, batch, progress = result
            results.send((epoch.serial, (step, writer.pack(batch), progress)))

        ports = PipePorts(self._pipes.exchange, epoch.serial, self._spec.prefetch, send)
        run = EpochRun(self._spec_with(writer), epoch, ports, seeds=self._spec.collate_threads == 1)
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
        except Exception as error:
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
            except EOFError:
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
                if not self._done.wait(_GRACE):
                    kill_children()
                return
