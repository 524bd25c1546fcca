"""Rank processes on this machine: `run_ranks` starts them, waits for what they return, and ends all
of them if one fails, if the demo is interrupted, or if this process dies."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import (
    ProcessExitedException,
    ProcessRaisedException,
    start_processes,
)

from evenstep.cli.output import note
from evenstep.errors import EvenstepError

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
        RankFailedError: a rank failed. All ranks have ended, and its traceback is on standard
            error.
    """
    with tempfile.TemporaryDirectory(prefix="evenstep-demo-") as folder:
        # A file, because `Process.start` returns only after the process has read its arguments.
        (Path(folder) / "job").write_bytes(pickle.dumps((job, arguments)))
        queue: Any = multiprocessing.get_context("spawn").SimpleQueue()
        given = (folder, world_size, queue)
        started: Any = start_processes(  # type: ignore[no-untyped-call]
            _rank_main, given, world_size, join=False
        )
        results: dict[int, Any] = {}
        try:
            running = True
            while running or not queue.empty():
                running = running and not started.join(timeout=0.1)
                while not queue.empty():
                    rank, value = queue.get()
                    if rank is None:
                        on_message(value)
                    else:
                        results[rank] = value
        except ProcessRaisedException as error:
            note(error.msg)
            said = error.msg.strip().splitlines()[-1]
            raise RankFailedError(f"rank {error.error_index} failed: {said}") from error
        except ProcessExitedException as error:
            how = f"ended with exit code {error.exit_code}"
            if error.signal_name:
                how = f"killed by {error.signal_name}"
            raise RankFailedError(f"rank {error.error_index} failed: {how}") from error
        finally:
            for process in started.processes:
                process.terminate()
            for process in started.processes:
                process.join(_GRACE)
                process.kill()
                process.join()
        return [results[rank] for rank in range(world_size)]


def _rank_main(rank: int, folder: str, world_size: int, queue: Any) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if sys.platform == "linux":
        # Loader workers of a spawned process would be spawned too, and import torch again.
        multiprocessing.set_start_method("fork", force=True)
        # The name of this machine need not resolve to an address.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    job, arguments = pickle.loads((Path(folder) / "job").read_bytes())
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
    result = job(lambda value: queue.put((None, value)), *arguments)
    dist.barrier()
    dist.destroy_process_group()
    queue.put((rank, result))
    # Gloo's threads live on: one that frees a Python object while the interpreter is taken
    # down aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
