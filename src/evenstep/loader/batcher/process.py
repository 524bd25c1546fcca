"""The batcher as a process of its own, between the workers and the trainer.

The process ends when the trainer says so, or when the trainer is gone: it watches its parent, and
takes its workers with it.
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
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from evenstep.batch.memory import borrowing
from evenstep.errors import LoaderDiedError
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import End, EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.batcher.spec import EpochSpec, LoaderSpec
from evenstep.loader.transport.shared_memory import Reader, Writer
from evenstep.processes import end_with_parent, kill_children

__all__ = ["BatcherProcess"]

_GRACE = 2.0  # seconds that workers get to finish the sample at hand when the trainer leaves


@dataclass(frozen=True)
class _Pipes:
    """The batcher's ends."""

    control: Connection
    """In: passes to begin or abandon, and credits."""
    feed: Connection
    """In: blocks of dataset indices."""
    exchange: Connection
    """Both ways: messages to and from all ranks."""
    results: Connection
    """Out: finished steps, and how the pass ended."""


class BatcherProcess:
    """The trainer's handle on its batcher process. All passes of a loader may share it."""

    def __init__(self, spec: LoaderSpec) -> None:
        context: Any = multiprocessing.get_context(spec.start_method)
        theirs_control, self._control = context.Pipe(duplex=False)
        theirs_feed, self.feed = context.Pipe(duplex=False)
        self._results, theirs_results = context.Pipe(duplex=False)
        self.exchange, theirs_exchange = context.Pipe()
        pipes = _Pipes(theirs_control, theirs_feed, theirs_exchange, theirs_results)
        # Not a daemon: those may not have children, and this one has the workers.
        self._process = context.Process(
            target=_main, args=(spec, pipes), name="evenstep-batcher", daemon=False
        )
        self._process.start()
        # Only the batcher may hold its ends, or nobody would notice when it dies.
        for connection in (theirs_control, theirs_feed, theirs_exchange, theirs_results):
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
        """Leaves the pass under way; the process stays for the next."""
        self._command("abandon", self._serial)

    def _command(self, command: str, value: Any) -> None:
        with contextlib.suppress(OSError):  # it died; `get` will say so
            self._control.send((command, value))

    def get(self, timeout: float) -> Any:
        """The next result of the pass under way: (StepInfo, batch, Mark), `End` or `BatcherFailure`; None
        when there is none within `timeout` seconds.

        Raises:
            LoaderDiedError: the process is gone.
        """
        deadline = time.monotonic() + timeout
        while True:
            # Whether it lives is asked first: what it sent before it died still counts.
            alive = self.alive()
            try:
                if self._results.poll(max(deadline - time.monotonic(), 0) if alive else 0):
                    serial, result = self._results.recv()
                    if isinstance(result, tuple):
                        step, packed, mark = result
                        result = (step, self._reader.unpack(packed), mark)
                    if serial == self._serial:
                        return result
                    continue
            except (EOFError, OSError):
                raise LoaderDiedError(self.epitaph()) from None
            if not alive:
                raise LoaderDiedError(self.epitaph())
            if time.monotonic() >= deadline:
                return None

    def alive(self) -> bool:
        return bool(self._process.is_alive())

    def epitaph(self) -> str:
        """What there is to say of the process once it is gone."""
        deadline = time.monotonic() + 1.0
        # Another thread may have collected the exit code this moment, and not have noted it yet.
        while (code := self._process.exitcode) is None and time.monotonic() < deadline:
            self._process.join(0.05)
        how = (
            f"was killed by {signal.Signals(-code).name}"
            if code is not None and code < 0
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
        # The pipes are left to garbage collection: another thread may still be looking at one.

    def _drain(self, deadline: float) -> None:
        """Waits for the process to end. It cannot while it is blocked on a full pipe, so what it
        still sends is thrown away."""
        sources: list[Any] = [self._process.sentinel, self._results]
        # Its workers hold the sentinel too, hence the look at the process itself.
        while self.alive() and time.monotonic() < deadline:
            if self._results in multiprocessing.connection.wait(sources, timeout=0.1):
                try:
                    self._results.recv_bytes()
                except (EOFError, OSError):
                    sources.remove(self._results)


# Inside the process


def _main(spec: LoaderSpec, pipes: _Pipes) -> None:
    # Ctrl-C reaches the whole process group; the trainer decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    torch.set_num_threads(1)
    _Main(spec, pipes).run()


class _Main:
    def __init__(self, spec: LoaderSpec, pipes: _Pipes) -> None:
        self._spec = spec
        self._pipes = pipes
        self._writer = Writer()
        self._lock = threading.Lock()
        self._begun: queue.SimpleQueue[EpochSpec | None] = queue.SimpleQueue()
        self._under_way: tuple[int, EpochRun, PipePorts] | None = None
        self._abandoned = -1  # latest pass that the trainer has left
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
            step, batch, mark = result
            results.send((epoch.serial, (step, writer.pack(batch), mark)))

        ports = PipePorts(self._pipes.exchange, epoch.serial, self._spec.prefetch, send)
        run = EpochRun(self._spec_with(writer), epoch, ports, seeds=self._spec.collate_threads == 1)
        with self._lock:
            self._under_way = (epoch.serial, run, ports)
            if self._abandoned >= epoch.serial:
                return
        end: End | BatcherFailure
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
        """The spec, with a collate function that may make its batch in `writer`'s memory."""

        def collate(samples: list[Any]) -> Any:
            with borrowing(writer.lend):
                return self._spec.collate_fn(samples)

        return dataclasses.replace(self._spec, collate_fn=collate)

    def _obey(self) -> None:
        """Follows the trainer's commands, beside the pass under way."""
        while True:
            try:
                command, value = self._pipes.control.recv()
            except EOFError:
                command, value = "close", None
            if command == "begin":
                self._begun.put(value)
                continue
            with self._lock:
                under_way = self._under_way
                if command == "abandon":
                    self._abandoned = max(self._abandoned, value)
                elif command == "close":
                    self._abandoned = 1 << 62
            if command == "credit":
                if under_way and under_way[0] == value:
                    under_way[2].credit()
                continue
            if under_way and under_way[0] <= self._abandoned:
                under_way[1].close()
                under_way[2].close()
            if command == "close":
                self._begun.put(None)
                # A worker may be deep in a slow sample that nobody waits for any more.
                if not self._done.wait(_GRACE):
                    kill_children()
                return
