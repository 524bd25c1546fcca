"""Rank processes on this machine: `run_ranks` starts them, waits for what they return, and ends all
of them if one fails, or if the demo is interrupted. They end with this process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessException, spawn

from evenstep.cli.output import note
from evenstep.errors import EvenstepError


class RankFailedError(EvenstepError):
    """A rank process raised an exception or died."""


def run_ranks(job: Callable[..., Any], world_size: int, *arguments: Any) -> list[Any]:
    """Runs ``job(*arguments)`` on every rank, inside a Gloo process group.

    Args:
        job: a module-level function.
        world_size: number of processes.
        arguments: picklable values.

    Returns:
        What each rank's `job` returned, by rank.

    Raises:
        RankFailedError: a rank failed. All ranks have ended, and the traceback of the one that
            failed first is on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="evenstep-demo-") as folder:
        # A file, because a process starts only once the one before has read its arguments.
        (Path(folder) / "job").write_bytes(pickle.dumps((job, arguments)))
        ranks = spawn(  # type: ignore[no-untyped-call]
            _rank_main, (folder, world_size), world_size, join=False
        )
        try:
            while not ranks.join():
                pass
        except ProcessException as error:
            killed = (n for n, each in enumerate(ranks.processes) if each.exitcode == -9)
            # What a rank says whose peer was killed follows from that.
            if (culprit := next(killed, None)) is not None:
                said = "killed by SIGKILL; if memory ran out, lower --max-tokens"
                raise RankFailedError(f"rank {culprit} failed: {said}") from None
            note(error.msg)
            said = error.msg.strip().splitlines()[-1]
            raise RankFailedError(f"rank {error.error_index} failed: {said}") from None
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()
        return [pickle.loads((Path(folder) / f"{n}").read_bytes()) for n in range(world_size)]


def _rank_main(rank: int, folder: str, world_size: int) -> None:
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
    result = job(*arguments)
    dist.barrier()
    dist.destroy_process_group()
    (Path(folder) / f"{rank}").write_bytes(pickle.dumps(result))
    # Gloo's threads live on: one that frees a Python object while the interpreter is taken
    # down aborts the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
