"""Ranks of a job as real processes: a hard deadline for all, and nothing may be left behind.

Every rank is the leader of a session of its own, so whatever it starts can be found and ended. A
rank writes what came of it into a file, as the death of a rank must not disturb the report of
another one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import psutil
import torch
import torch._dynamo  # here, and not in each rank that uses DistributedDataParallel
import torch.distributed as dist

from shared_memory import abandoned, shared_memory

GRACE = 10.0  # seconds within which everything must be gone after the ranks have ended


@dataclass(frozen=True)
class Outcome:
    """What came of one rank: a value, an error, or neither if it was killed."""

    value: Any = None
    error: str = ""
    """Name of the exception's class."""
    message: str = ""
    traceback: str = ""
    log: str = ""
    """What the rank and its children wrote to stdout and stderr."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The last value of every word that it said."""


class Rank:
    """What a rank's function is given."""

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self.rank = rank
        self.world_size = world_size
        self.rendezvous = f"file://{folder}/rendezvous"
        """Where the ranks meet."""
        self._folder = folder

    def say(self, word: str, value: Any = None) -> None:
        """Tells the test; see `Job.heard`."""
        _write(self._folder / f"{self.rank}.{word}", value)

    def heard(self, rank: int, word: str, within: float = 20.0) -> Any:
        """What another rank said, as soon as it has."""
        return _read(self._folder / f"{rank}.{word}", time.monotonic() + within)

    def children(self) -> list[int]:
        """Processes that this rank, or one that it started, has started, but for the one that
        multiprocessing keeps until the end where start methods other than fork are used."""
        return [
            child.pid
            for child in psutil.Process().children(recursive=True)
            if "resource_tracker" not in _command(child.pid)
        ]


class Job:
    """Runs ``function(Rank, *args)`` on every rank. As a context manager it leaves none alive."""

    def __init__(
        self,
        function: Callable[..., Any],
        world_size: int,
        *args: Any,
        folder: Path,
        prepare: Callable[[Rank], None] | None = None,
    ) -> None:
        """
        Args:
            folder: takes what ranks print; it is made.
            prepare: called on every rank before the ranks connect.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        # Not in the folder: the name of a socket has at most 107 characters.
        self._temporary = Path(tempfile.mkdtemp(prefix="es-"))
        self._shared_before = shared_memory()
        context = multiprocessing.get_context("fork")
        self._processes = [
            context.Process(
                target=_main,
                args=(function, rank, world_size, args, folder, self._temporary, prepare),
            )
            for rank in range(world_size)
        ]

    def __enter__(self) -> Job:
        for process in self._processes:
            process.start()
        return self

    def __exit__(self, *exception: object) -> None:
        for pid in self._survivors():
            os.kill(pid, signal.SIGKILL)
        for process in self._processes:
            process.kill()  # it may not have a session yet
            process.join()
        shutil.rmtree(self._temporary)

    def pid(self, rank: int) -> int:
        pid = self._processes[rank].pid
        assert pid is not None
        return pid

    def heard(self, rank: int, word: str, within: float = 20.0) -> Any:
        """What a rank said, as soon as it has."""
        return _read(self._folder / f"{rank}.{word}", time.monotonic() + within)

    def signal(self, rank: int, number: signal.Signals, *, children: bool = False) -> None:
        """Sends a signal to a rank, or to all of its session as a terminal does."""
        if children:
            for pid in self.session(self.pid(rank)):
                with contextlib.suppress(ProcessLookupError):  # it ended as others were told
                    os.kill(pid, number)
        else:
            os.kill(self.pid(rank), number)

    def join(self, within: float) -> list[Outcome]:
        """Waits for all ranks, and checks that they have left nothing behind.

        Args:
            within: seconds; a rank that takes longer hangs.
        """
        deadline = time.monotonic() + within
        running = {process.sentinel: process for process in self._processes}
        while running and time.monotonic() < deadline:
            # A child may hold a sentinel open, hence the look at the processes themselves.
            wait(list(running), timeout=0.05)
            running = {s: p for s, p in running.items() if p.is_alive()}
        if running:
            for pid in self._survivors():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGUSR1)  # makes it write where it hangs
                time.sleep(0.2)
            hanging = [self._processes.index(process) for process in running.values()]
            raise AssertionError(f"ranks {hanging} hang\n{self._logs()}")
        self._check_clean(time.monotonic() + GRACE)
        return [self._outcome(rank) for rank in range(len(self._processes))]

    def _outcome(self, rank: int) -> Outcome:
        log = (self._folder / f"{rank}.log").read_text()
        said = {
            path.suffix[1:]: pickle.loads(path.read_bytes())
            for path in self._folder.glob(f"{rank}.*")
            if path.suffix not in (".log", ".part")
        }
        value, error = said.pop("outcome", (None, ("", "", "")))
        return Outcome(value, *error, log=log, said=said)

    def _check_clean(self, deadline: float) -> None:
        while left := self._leftovers():
            assert time.monotonic() < deadline, f"left behind: {left}\n{self._logs()}"
            time.sleep(0.05)

    def _leftovers(self) -> list[str]:
        processes = [f"process {pid}: {_command(pid)}" for pid in self._survivors()]
        # What torch compiles, it keeps there for the next process.
        files = [
            str(path)
            for path in self._temporary.iterdir()
            if not path.name.startswith("torchinductor_")
        ]
        shared = abandoned(shared_memory() - self._shared_before)
        if "PYTEST_XDIST_WORKER" in os.environ:
            # Names do not tell whose they are, and tests beside this one kill processes that have
            # some. `make test JOBS=0` runs one test at a time, and looks at them too.
            shared = {path for path in shared if not path.startswith("/dev/shm/sem.")}
        return processes + files + sorted(shared)

    def _survivors(self) -> list[int]:
        return [pid for p in self._processes if p.pid is not None for pid in self.session(p.pid)]

    @staticmethod
    def session(leader: int) -> list[int]:
        members = []
        for pid in psutil.pids():
            try:
                ours = os.getsid(pid) == leader
                if ours and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    members.append(pid)
            except (ProcessLookupError, PermissionError, psutil.NoSuchProcess):
                continue
        return members

    def _logs(self) -> str:
        parts = []
        for rank in range(len(self._processes)):
            outcome = self._outcome(rank)
            parts.append(f"--- rank {rank}\n{outcome.log}\n{outcome.traceback}")
        return "\n".join(parts)


def run(
    function: Callable[..., Any],
    world_size: int,
    *args: Any,
    folder: Path,
    within: float = 30.0,
    prepare: Callable[[Rank], None] | None = None,
) -> list[Any]:
    """Runs a job in which every rank must succeed, and gives their values."""
    with Job(function, world_size, *args, folder=folder, prepare=prepare) as job:
        outcomes = job.join(within)
    for rank, outcome in enumerate(outcomes):
        assert not outcome.error, f"rank {rank}: {outcome.traceback}"
        # An error in a thread or a finalizer is seen there alone.
        assert "Traceback" not in outcome.log, f"rank {rank}:\n{outcome.log}"
    return [outcome.value for outcome in outcomes]


def run_all(
    *functions: Callable[[Rank], Any], world_size: int, folder: Path, within: float = 30.0
) -> list[list[Any]]:
    """[functions, ranks] values of functions that one job calls one after the other."""
    return list(
        map(list, zip(*run(_call_all, world_size, *functions, folder=folder, within=within)))
    )


def _call_all(rank: Rank, *functions: Callable[[Rank], Any]) -> list[Any]:
    values = []
    for function in functions:
        print(function, flush=True)  # so that the log of a rank that hangs says where
        values.append(function(rank))
    return values


def _main(
    function: Callable[..., Any],
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
    folder: Path,
    temporary: Path,
    prepare: Callable[[Rank], None] | None,
) -> None:
    os.setsid()
    log = open(folder / f"{rank}.log", "w", buffering=1)  # noqa: SIM115  open to the very end
    sys.stdout = sys.stderr = log
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a test before may have left that of Ray
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)
    torch.set_num_threads(1)
    value, error = None, ("", "", "")
    here = Rank(rank, world_size, folder)
    try:
        if prepare is not None:
            prepare(here)
        dist.init_process_group(
            "gloo", init_method=here.rendezvous, rank=rank, world_size=world_size
        )
        # A rank that fails at once must not close its connections while others are still making
        # theirs.
        here.say("connected")
        for other in range(world_size):
            here.heard(other, "connected", within=60)
        value = function(here, *args)
    except BaseException as caught:
        error = (type(caught).__name__, str(caught), traceback.format_exc())
        raise
    finally:
        _write(folder / f"{rank}.outcome", (value, error))


def _command(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:  # a zombie too
        return ""


def _write(path: Path, value: Any) -> None:
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(pickle.dumps(value))
    part.rename(path)  # so that nobody reads half of it


def _read(path: Path, deadline: float) -> Any:
    while not path.exists():
        assert time.monotonic() < deadline, f"rank {path.stem} has not said {path.suffix[1:]!r}"
        time.sleep(0.02)
    return pickle.loads(path.read_bytes())
