"""A job from outside: its rank processes, their memory, a worker that is killed, and the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.peers import data
from benchmarks.peers.registry import PEERS, python_of
from benchmarks.peers.work import Work

READERS = 2
"""Processes that prepare samples, of all ranks together."""
BATCH = 16
MAX_TOKENS = 8192
PATIENCE = 60.0
"""Seconds without a batch, after the first, after which a job hangs."""
LIMIT = 180.0
"""Seconds that a job may take in all."""
AT = 0.4
"""Part of the epoch after which a job stops in between."""
PYTHONS_OWN = "resource_tracker", "forkserver import main"
"""In the command lines of processes that prepare no samples."""
EVERY = 0.5
"""Seconds between two readings of memory."""


@dataclass
class Outcome:
    """What became of a job."""

    records: list[dict[str, Any]] = field(default_factory=list)
    """What each rank saw, empty for one that did not reach the end."""
    begun: float = 0.0
    peak: float = 0.0
    """Bytes, PSS of all its processes."""
    error: str = ""
    hung: bool = False
    struck: float = 0.0
    """When a worker was killed."""
    ended: float = 0.0
    killed: str = ""
    """Command line of the worker."""


class Job:
    """Rank processes of a peer; none of its processes is left afterwards."""

    def __init__(self, name: str, workload: str, ranks: int, *, quick: bool, **given: Any) -> None:
        self._peer, self._quick = PEERS[name], quick
        self._folder = tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self._outs = [folder / f"{rank}.json" for rank in range(ranks)]
        self._beat = folder / "beat"
        base = Work(
            workload=workload,
            folder=str(data.converted(name, workload, quick).absolute()),
            samples=data.samples_of(workload, quick),
            rank=0,
            ranks=ranks,
            workers=READERS // ranks,
            batch_size=BATCH,
            max_tokens=MAX_TOKENS,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.outcome = Outcome(begun=time.time())
        self._processes: list[subprocess.Popen[str]] = []
        self._all: dict[int, psutil.Process] = {}
        for rank in range(ranks):
            whole = {
                "adapter": self._peer.adapter,
                "work": asdict(base) | {"rank": rank},
                "out": str(self._outs[rank]),
                "heartbeat": str(self._beat),
                **given,
            }
            if "state" in given:
                whole["state"] = f"{given['state']}-{rank}"
            environment = {
                **os.environ,
                "PEERS_TOKENIZER": str(data.tokenizer_file(quick).absolute()),
                "PEERS_FOLDER": str(folder),
                "PEERS_PARENT": str(os.getpid()),
                "TOKENIZERS_PARALLELISM": "false",
                "OMP_NUM_THREADS": "1",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **self._peer.environment,
            }
            with open(folder / f"{rank}.log", "w") as log:
                process = subprocess.Popen(
                    [python_of(name), "-m", "benchmarks.peers.rank", json.dumps(whole)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            self._processes.append(process)

    def strike(self) -> None:
        """Waits until the first rank has stopped in between, kills one of its workers, goes on."""
        first = self._processes[0]
        assert first.stdout is not None
        while (line := first.stdout.readline()) and line != "ready\n":
            pass
        if line:
            worker = self._worker(psutil.Process(first.pid))
            if worker is None:
                self.outcome.killed = ""
            else:
                self.outcome.killed = " ".join(worker.cmdline())[:80] or worker.name()
                worker.send_signal(signal.SIGKILL)
            self.outcome.struck = time.time()
            for process in self._processes:
                assert process.stdin is not None
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write("go\n")
                    process.stdin.flush()

    def _worker(self, rank: psutil.Process) -> psutil.Process | None:
        """The busiest of its processes, or of those that the peer says prepare samples."""
        found = []
        for process in rank.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                words = " ".join(process.cmdline())
                if self._peer.worker in words and not any(own in words for own in PYTHONS_OWN):
                    found.append((sum(process.cpu_times()[:2]), process.pid, process))
        return max(found)[2] if found else None

    def end(self) -> Outcome:
        """Waits for the ranks, watching their memory, and clears up."""
        outcome, limit = self.outcome, self.outcome.begun + LIMIT
        threading.Thread(target=self._drain, daemon=True).start()
        try:
            while any(process.poll() is None for process in self._processes):
                if not all(out.exists() for out in self._outs):
                    self._measure()
                elif not outcome.ended:
                    outcome.ended = time.time()
                if outcome.ended and time.time() > outcome.ended + 15:
                    break  # it has read everything and does not end: not what is measured
                if any(process.poll() for process in self._processes):
                    break
                last = self._beat.stat().st_mtime if self._beat.exists() else limit
                if time.time() > min(limit, max(last, outcome.struck) + PATIENCE):
                    outcome.hung = not outcome.ended
                    break
                time.sleep(EVERY if not outcome.struck else 0.02)
            outcome.ended = outcome.ended or time.time()
            self._collect()
        finally:
            self._clear()
        return outcome

    def _drain(self) -> None:
        for process in self._processes:
            if process.stdout is not None:
                process.stdout.read()

    def _tree(self) -> list[psutil.Process]:
        for process in self._processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                own = psutil.Process(process.pid)
                for member in [own, *own.children(recursive=True)]:
                    self._all.setdefault(member.pid, member)
        return list(self._all.values())

    def _measure(self) -> None:
        total = 0
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_full_info().pss
        self.outcome.peak = max(self.outcome.peak, float(total))

    def _collect(self) -> None:
        folder = Path(self._folder.name)
        for out in self._outs:
            if out.exists():
                self.outcome.records.append(json.loads(out.read_text()))
        if len(self.outcome.records) < len(self._outs) and not self.outcome.hung:
            written = sorted(folder.glob("*.error"), key=lambda error: error.stat().st_mtime)
            errors = [error.read_text() for error in written]
            if written:
                self.outcome.ended = written[0].stat().st_mtime
            logs = [log.read_text()[-2000:] for log in sorted(folder.glob("*.log"))]
            self.outcome.error = "\n".join(errors or logs) or "it ended without a word"

    def _clear(self) -> None:
        for process in self._tree():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for started in self._processes:
            started.wait()
            for stream in (started.stdin, started.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()
        self._folder.cleanup()
