"""Connections between ranks that are reset. `test_poor_networks` has networks that are gone."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from faults import FORK, THREADS, WITHIN, assert_died, loader_over, train
from ranks import Job, Rank

from documents import Documents


def reset_connections() -> int:
    """Resets every TCP connection of this process, as a firewall may. Here it looks closed."""
    ours = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                copy = socket.socket(fileno=os.dup(int(name)))
                copy.getpeername()
                if copy.family in (socket.AF_INET, socket.AF_INET6):
                    copy.shutdown(socket.SHUT_RD)
                    ours.append(copy)
        except OSError:  # it listens, or was closed meanwhile
            continue
    time.sleep(0.2)
    libc, no_family = ctypes.CDLL(None), ctypes.create_string_buffer(16)
    for copy in ours:
        assert libc.connect(copy.fileno(), no_family, 16) == 0  # the peer is sent a reset
        copy.close()
    return len(ours)


def train_until_reset(rank: Rank, workers: dict[str, Any]) -> None:
    if rank.rank == 1:
        steps = loader_over(Documents(100_000), **workers).steps()
        for number, _ in enumerate(steps):
            time.sleep(0.01)
            if number == 3:
                rank.say("reset", reset_connections())
    else:
        train(rank, workers)


@pytest.mark.parametrize("workers", [FORK, pytest.param(THREADS, marks=pytest.mark.slow)])
def test_connections_that_are_reset_are_an_error_on_every_rank(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    with Job(train_until_reset, 3, workers, folder=tmp_path) as job:
        assert job.heard(1, "reset")
        outcomes = job.join(WITHIN)
    for number, outcome in enumerate(outcomes):
        assert_died(outcome, "PeerError", f"rank {number} can make no further step")
    assert "Connection reset by peer" in outcomes[0].message
