"""Rank processes on this machine: `run_ranks` starts them, waits for what they return, and ends all
of them if one fails, if the demo is interrupted, or if this process dies."""

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
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch.distributed as dist

from evenstep.cli.output import note
from evenstep.errors import EvenstepError, described

_SECONDS_BETWEEN_LINES = 5.0
_GRACE = 5.0  # seconds between asking a process to end and killing it


class ProgressLines:
    """Tells every few seconds how far a run is.

    Args:
        run: its name.
        total: samples or steps of the run.
        tell: takes lines.
    """

    def __init__(self, run: str, total: int, tell: Callable[[str], None]) -> None:
        self.total = total
        self._run, self._tell = run, tell
        self._next = 0.0

    def step(self, step: int, done: int, loss: float) -> None:
        if done >= self.total or time.monotonic() >= self._next:
            self._next = time.monotonic() + _SECONDS_BETWEEN_LINES
            self._tell(f"{self._run:>10}: {done / self.total:4.0%}, step {step}, loss {loss:.2f}")


class RankFailedError(EvenstepError):
    """A rank process raised an exception or died."""


def run_ranks(
    job: Callable[..., Any],
    world_size: int,
    arguments: tuple[Any, ...],
    on_message: Callable[[Any], None],
) -> list[Any]:
    """Runs ``job(send, *arguments)`` on every rank, inside a Gloo process group.

    Args:
        job: a module-level function. `send` takes picklable values from any rank.
        world_size: number of processes.
        arguments: picklable values.
        on_message: called in this process with every value that is sent.

    Returns:
        What each rank's `job` returned, by rank.

    Raises:
        RankFailedError: a rank failed. All ranks have ended, and the traceback of the one that
            failed first is on standard error.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="evenstep-demo-") as folder:
        # A file, because `Process.start` returns only after the process has read its arguments.
        (Path(folder) / "job").write_bytes(pickle.dumps((job, arguments)))
        # All ranks share one pipe, so the first failure to arrive is the cause of the others.
        receiver, sender = context.Pipe(duplex=False)
        lock = context.Lock()
        ranks = [
            context.Process(target=_rank_main, args=(sender, lock, folder, rank, world_size))
            for rank in range(world_size)
        ]
        try:
            for process in ranks:
                process.start()
            return _receive(ranks, receiver, on_message)
        finally:
            _end(ranks)


def _receive(
    ranks: list[SpawnProcess], receiver: Connection, on_message: Callable[[Any], None]
) -> list[Any]:
    results: dict[int, Any] = {}
    while len(results) < len(ranks):
        # A rank's loader workers keep copies of its pipes open, so only its exit code shows that it
        # has died.
        if not receiver.poll(0.2):
            for rank, process in enumerate(ranks):
                exited = process.exitcode is not None
                if rank not in results and exited and not receiver.poll():
                    raise RankFailedError(f"rank {rank} failed: {_how_it_ended(process)}")
            continue
        kind, rank, value = receiver.recv()
        if kind == "returned":
            results[rank] = value
        elif kind == "message":
            on_message(value)
        else:
            # A rank that was killed reports nothing, and its death may show a little later than the
            # failures of its peers, which follow from it.
            for other, process in enumerate(ranks):
                process.join(0.5)
                if (process.exitcode or 0) < 0:
                    raise RankFailedError(f"rank {other} failed: {_how_it_ended(process)}")
            summary, details = value
            note(details)
            raise RankFailedError(f"rank {rank} failed: {summary}")
    return [results[rank] for rank in range(len(ranks))]


def _how_it_ended(process: SpawnProcess) -> str:
    code = process.exitcode or 0
    if code >= 0:
        return f"ended with exit code {code}"
    out_of_memory = "; if memory ran out, lower --max-tokens" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{out_of_memory}"


def _end(ranks: list[SpawnProcess]) -> None:
    started = [process for process in ranks if process.pid is not None]
    for process in started:
        # A rank that has returned ends by itself.
        process.join(0)
        process.terminate()
    for process in started:
        process.join(_GRACE)
        process.kill()
        process.join()


def _rank_main(pipe: Connection, lock: Any, folder: str, rank: int, world_size: int) -> None:
    # Ctrl-C reaches all processes of a terminal; the parent process decides what happens then.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if sys.platform == "linux":
        # Loader workers of a spawned process would be spawned too, and import torch again.
        multiprocessing.set_start_method("fork", force=True)
        # The name of this machine need not resolve to an address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    def send(kind: str, value: Any) -> None:
        with lock:
            pipe.send((kind, rank, value))

    try:
        job, arguments = pickle.loads((Path(folder) / "job").read_bytes())
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
        result = job(lambda value: send("message", value), *arguments)
        dist.barrier()
        dist.destroy_process_group()
        send("returned", result)
    except Exception as error:
        with contextlib.suppress(OSError):
            send("failed", (described(error), traceback.format_exc()))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is about to end
        sys.exit(1)
    # Gloo's threads live on: one that frees a Python object while the interpreter is taken
    # down aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
