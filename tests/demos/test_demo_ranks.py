"""Jobs of a few lines in real processes. Starting a rank imports torch, which takes seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
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
