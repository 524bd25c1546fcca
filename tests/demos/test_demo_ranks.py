"""Jobs of a few lines in real processes. Starting a rank imports torch, which takes seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist

from evenstep_demos.ranks import RankFailedError, run_ranks

Send = Callable[[Any], None]


def one_is_killed(send: Send, culprit: int) -> None:
    send(os.getpid())
    dist.barrier()
    if dist.get_rank() == culprit:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def wait_for_ever(send: Send) -> None:
    send(os.getpid())
    time.sleep(600)


def _gone(pids: list[int]) -> bool:
    """Waits for processes that are on their way out."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_a_killed_rank_is_named_and_its_peer_does_not_wait_for_it() -> None:
    pids: list[int] = []
    with pytest.raises(RankFailedError, match="rank 1 failed: killed by SIGKILL"):
        run_ranks(one_is_killed, 2, (1,), pids.append)
    assert len(pids) == 2
    assert _gone(pids)


@pytest.mark.soak
def test_an_interrupt_of_the_parent_ends_the_ranks() -> None:
    pids: list[int] = []

    def interrupt(pid: int) -> None:
        pids.append(pid)
        if len(pids) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_ranks(wait_for_ever, 2, (), interrupt)
    assert _gone(pids)


@pytest.mark.soak
def test_the_death_of_the_parent_ends_the_ranks() -> None:
    program = (
        "from test_demo_ranks import wait_for_ever\n"
        "from evenstep_demos.ranks import run_ranks\n"
        "if __name__ == '__main__':\n"
        "    run_ranks(wait_for_ever, 2, (), lambda pid: print(pid, flush=True))\n"
    )
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    with parent, parent.stdout as output:
        pids = [int(output.readline()) for _ in range(2)]
        parent.kill()
    assert _gone(pids)
