"""The trainer's handle on a batcher: a process of its own, or threads of the trainer's.

For the process see `process_main`; ``num_workers=0`` has threads.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import queue
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import Any

from evenstep.batch.step_info import StepInfo
from evenstep.errors import CollateError, EvenstepError, LoaderDiedError, described
from evenstep.loader.batcher.batcher_messages import EpochSpec, LoaderSpec, Observed
from evenstep.loader.batcher.intake import Intake
from evenstep.loader.batcher.pipeline import EpochRun
from evenstep.loader.batcher.ports import BatcherFailure, PipePorts
from evenstep.loader.batcher.process_main import ANY_PASS, GRACE, run_batcher
from evenstep.loader.batcher.sample_store import Closed
from evenstep.loader.start import start_process
from evenstep.loader.threads import GuardedThread
from evenstep.loader.transport.shared_memory import PackedObject, Reader
from evenstep.loader.workers.worker_start import could_not_start

_COPIED = 1 << 20
"""Bytes of a part of a batch that the trainer gets a copy of: loops keep such as token ids. Larger
ones share the memory of the whole batch."""


class BatcherProcess:
    """The trainer's handle on its batcher process. All passes of a loader may share it."""

    def __init__(self, spec: LoaderSpec) -> None:
        try:
            batcher_control, self._control = multiprocessing.Pipe(duplex=False)
            batcher_feed, self.feed = multiprocessing.Pipe()
            self._results, batcher_results = multiprocessing.Pipe(duplex=False)
            self.exchange, batcher_exchange = multiprocessing.Pipe()
            theirs = (batcher_control, batcher_feed, batcher_exchange, batcher_results)
            self._process = start_process(run_batcher, spec, theirs)
        except (OSError, MemoryError) as error:
            raise could_not_start(f"the batcher process of rank {spec.rank}", error) from error
        # Before multiprocessing waits for it, since it ends only on request.
        Finalize(self, _kill, (self._process,), exitpriority=99)
        # Only the batcher may hold its ends, or its death would close no pipe and go unnoticed.
        for connection in theirs:
            connection.close()
        self._rank = spec.rank
        self._reader = Reader(copied=_COPIED)
        self._serial = -1
        self._torn = False
        """A result was read in part, so the next one cannot be found."""

    def begin(self, epoch: EpochSpec) -> None:
        self._serial = epoch.serial
        self._command("begin", epoch)

    def credit(self) -> None:
        self._command("credit", self._serial)

    def tell_measured(self, measured: Observed) -> None:
        self._command("measured", (self._serial, measured))

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
                    if serial in (self._serial, ANY_PASS):
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
            else f"ended with exit code {code}"
        )
        return (
            f"the batcher process of rank {self._rank} (process {self._process.pid}) {how}; if the "
            "system ran out of memory, lower buffer_size, prefetch or num_workers"
        )

    def close(self) -> None:
        """Ends the process; returns when it is gone."""
        self._ask("close")
        self._drain(time.monotonic() + GRACE + 5)
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


def _kill(process: Any) -> None:
    if process.is_alive():
        process.kill()


class BatcherThread:
    """Same interface as `BatcherProcess`, for one pass."""

    def __init__(self, spec: LoaderSpec) -> None:
        """
        Raises:
            LoaderDiedError: no more files may be opened.
        """
        self._spec = spec
        # `length_fn` and `collate_fn` may share a tokenizer, in which every call sets padding and
        # truncation for itself.
        self._lock = threading.Lock()
        try:
            self.exchange, self._batcher_exchange = multiprocessing.Pipe()
            batcher_feed, self.feed = multiprocessing.Pipe()
        except OSError as error:
            raise could_not_start(f"the batcher of rank {spec.rank}", error) from error
        self._batcher_feed: Connection = batcher_feed
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._run: EpochRun | None = None
        self._ports: PipePorts | None = None
        self._thread: GuardedThread | None = None

    def begin(self, epoch: EpochSpec) -> None:
        """
        Raises:
            LoaderDiedError: there is no room for another thread.
        """
        self._ports = PipePorts(
            self._batcher_exchange, epoch.serial, self._spec.memory.prefetch, self._results.put
        )
        intake = Intake(self._spec, self._batcher_feed, self._lock)
        self._run = EpochRun(self._spec, epoch, self._ports, intake.feed, lock=self._lock)
        thread = GuardedThread(self._work, self._run, intake, self._ports, name="batcher")
        thread.start()
        self._thread = thread

    def _work(self, run: EpochRun, intake: Intake, ports: PipePorts) -> None:
        try:
            try:
                run.run(intake)
            finally:
                ports.finish()
            self._results.put(run.end())
        except Closed:
            pass
        except EvenstepError as error:
            self._results.put(BatcherFailure(error, traceback.format_exc()))
        finally:
            # The feeder may be blocked on a full pipe that is no longer read.
            with self._batcher_feed, self._batcher_exchange:
                ports.await_answer()

    def credit(self) -> None:
        if self._ports is not None:
            self._ports.credit()

    def tell_measured(self, measured: Observed) -> None:
        if self._ports is not None:
            self._ports.measured = measured

    def abandon(self) -> None:
        if self._run is not None and self._ports is not None:
            self._run.close()
            self._ports.close()

    def get(self, timeout: float) -> Any:
        """As `BatcherProcess.get`."""
        alive = self.alive()  # checked before reading
        try:
            return self._results.get(timeout=timeout if alive else 0)
        except queue.Empty:
            if alive:
                return None
            raise LoaderDiedError(self.cause_of_death()) from None

    def alive(self) -> bool:
        return self._thread is None or self._thread.alive()

    def cause_of_death(self) -> str:
        why = ""
        if self._thread is not None:
            self._thread.join(1.0)  # it closes its pipes a moment before it ends
            if (failure := self._thread.failure) is not None:
                why = f": {described(failure)}"
        return f"the batcher of rank {self._spec.rank} ended{why}"

    def close(self) -> None:
        self.abandon()
        if self._thread is None:  # which would have closed these
            self._batcher_feed.close()
            self._batcher_exchange.close()
        else:
            # A sample that is being prepared cannot be interrupted; its result is dropped.
            self._thread.join(5.0)
