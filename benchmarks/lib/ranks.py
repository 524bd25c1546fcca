"""Rank processes on this machine, new ones for every measurement, and none left afterwards.

They are forked from a server that has imported everything, so a start takes a fraction of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

_PROCESSES = multiprocessing.get_context("forkserver")


def preload(modules: Sequence[str]) -> None:
    """Names what the server imports. To be called before the first `run`."""
    _PROCESSES.set_forkserver_preload([__name__, *modules])


def run(job: Callable[..., Any], ranks: int, *arguments: Any, limit: float = 600.0) -> list[Any]:
    """Calls ``job(*arguments)`` on all ranks, in a process group of their own.

    Args:
        job: a module-level function.
        limit: seconds after which the ranks are said to hang.

    Returns:
        What each rank returned. Stops the program, with a rank's traceback, if one fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        processes, pipes = [], []
        try:
            for rank in range(ranks):
                ours, theirs = _PROCESSES.Pipe()
                process = _PROCESSES.Process(
                    target=_main, args=(job, arguments, theirs, folder, rank, ranks)
                )
                process.start()
                theirs.close()
                processes.append(process)
                pipes.append(ours)
            results: dict[int, Any] = {}
            while len(results) < ranks:
                waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in results]
                ready = wait(waiting, timeout=limit)
                if not ready:
                    sys.exit(f"rank {pipes.index(waiting[0])} hangs")
                for pipe in ready:
                    rank = pipes.index(pipe)  # type: ignore[arg-type]
                    try:
                        failure, results[rank] = pipe.recv()  # type: ignore[union-attr]
                    except EOFError:
                        sys.exit(f"rank {rank} died")
                    if failure:
                        sys.exit(f"rank {rank} failed\n{failure}")
            return [results[rank] for rank in range(ranks)]
        finally:
            for process in processes:
                # Its whole session: what a loader leaves running must not disturb the next one.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(int(process.pid or 0), signal.SIGKILL)
                process.join()


def _main(
    job: Callable[..., Any],
    arguments: tuple[Any, ...],
    results: Connection,
    folder: str,
    rank: int,
    ranks: int,
) -> None:
    os.setsid()
    # All ranks are on this machine, whose own name need not resolve to an address.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    # Denormal numbers, which the softmax of a trained model makes many of, are slow.
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore", FutureWarning)  # of torch, for what the packages call
    try:
        store = f"file://{folder}/store"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        result = job(*arguments)
        answer = (None, result)
    except BaseException:
        answer = (traceback.format_exc(), None)
    with contextlib.suppress(OSError, EOFError):
        results.send(answer)
        # Until it is killed, or its parent is gone: a rank that ends before the others would look
        # like a failure to them.
        results.recv()
