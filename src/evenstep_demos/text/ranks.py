"""Rank processes on this machine: starts them, passes on their messages, and ends them all.

However the job ends (success, an exception or death of one rank, Ctrl-C, even the death of this
process), no rank is left behind. The error names the rank that failed first: the others fail too,
when the connection to it breaks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from evenstep.errors import EvenstepError, described

_GRACE = 5.0  # seconds between asking a process to end and killing it


class RankFailedError(EvenstepError):
    """A rank process raised an exception or died. `details` is its traceback, if it left one."""

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


@dataclass(frozen=True, kw_only=True)
class _Failure:
    """Why a rank failed."""

    summary: str
    details: str
    moment: float


def run_ranks(
    job: Callable[..., None],
    world_size: int,
    arguments: tuple[Any, ...],
    on_message: Callable[[Any], None],
) -> None:
    """Runs ``job(send, *arguments)`` on every rank, inside a Gloo process group.

    Args:
        job: a module-level function. `send` takes picklable values from any rank.
        world_size: number of processes.
        arguments: picklable values.
        on_message: called in this process with every value that is sent.

    Raises:
        RankFailedError: a rank failed. All others have been ended by then.
    """
    context = multiprocessing.get_context("spawn")
    processes: list[SpawnProcess] = []
    pipes: list[Connection] = []
    with tempfile.TemporaryDirectory(prefix="evenstep-demo-") as folder:
        # Not as arguments of the processes, whose start would take until they have read them.
        (Path(folder) / "job").write_bytes(pickle.dumps((job, arguments)))
        try:
            for rank in range(world_size):
                ours, theirs = context.Pipe()
                process = context.Process(
                    target=_rank_main, args=(theirs, folder, rank, world_size)
                )
                with _interrupts_ignored():
                    process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            _follow(processes, pipes, on_message)
        finally:
            _end(processes)
            for pipe in pipes:
                pipe.close()


@contextlib.contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """A process started within ignores Ctrl-C, which goes to all processes of a terminal.

    This process decides what to do then. Outside the main thread, where no handler can be set, the
    ranks merely print more when they are interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(
    processes: list[SpawnProcess], pipes: list[Connection], on_message: Callable[[Any], None]
) -> None:
    failures: dict[int, _Failure] = {}
    running = dict(enumerate(pipes))
    while running and not failures:
        # A rank's own children keep copies of its pipe open, so its death is detected by polling.
        ready = wait(list(running.values()), timeout=0.2)
        for rank, pipe in list(running.items()):
            ended = processes[rank].exitcode is not None
            if pipe in ready or (ended and pipe.poll()):
                try:
                    message = pipe.recv()
                except (EOFError, OSError):
                    processes[rank].join(_GRACE)
                else:
                    if isinstance(message, _Failure):
                        failures[rank] = message
                    else:
                        on_message(message)
                    continue
            elif not ended:
                continue
            del running[rank]
            if processes[rank].exitcode != 0:
                failures[rank] = _died(processes[rank])
    if not failures:
        return
    # A rank that was killed sends nothing; its peers notice, and may report before it is missed.
    for rank, process in enumerate(processes):
        process.join(0.5)
        if rank not in failures and process.exitcode not in (None, 0) and not pipes[rank].poll():
            failures[rank] = _died(process)
    rank, first = min(failures.items(), key=lambda item: item[1].moment)
    raise RankFailedError(f"rank {rank} failed: {first.summary}", first.details)


def _died(process: SpawnProcess) -> _Failure:
    code = process.exitcode
    if code is not None and code < 0:
        reason = f"killed by {signal.Signals(-code).name}"
        if -code == signal.SIGKILL:
            reason += "; if memory ran out, lower --max-tokens"
    else:
        reason = f"ended with exit code {code}"
    # Before every failure that a rank reported itself: those are consequences.
    return _Failure(summary=reason, details="", moment=float("-inf"))


def _end(processes: list[SpawnProcess]) -> None:
    for process in processes:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + _GRACE
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _rank_main(pipe: Connection, folder: str, rank: int, world_size: int) -> None:
    signal.signal(signal.SIGTERM, _exit)
    threading.Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if sys.platform == "linux":
        # A spawned process has "spawn" as its default, with which every worker of every loader
        # would import torch again; under torchrun, for instance, a rank has "fork".
        multiprocessing.set_start_method("fork", force=True)
        # All ranks are on this machine, whose own name need not resolve to an address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        job, arguments = pickle.loads((Path(folder) / "job").read_bytes())
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        job(pipe.send, *arguments)
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:
        summary = described(error)
        failure = _Failure(summary=summary, details=traceback.format_exc(), moment=time.monotonic())
        with contextlib.suppress(OSError):
            pipe.send(failure)
        sys.exit(1)
    # Gloo's threads live on: one that frees a Python object while the interpreter is taken
    # down aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _exit(number: int, frame: Any) -> None:
    sys.exit(128 + number)


def _end_with_parent(pipe: Connection) -> None:
    # The parent never sends anything, so `recv` returns only when its end of the pipe is closed.
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()
    os.kill(os.getpid(), signal.SIGTERM)
