"""Connections between ranks that are reset, and a network that is gone for a while.

A rank can reset its own connections on any machine. With root's rights ranks live on two "hosts",
each with a network and a name of its own, joined by a cable that a test may cut.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from faults import FORK, THREADS, WITHIN, all_training, assert_died, end_of, loader_over, train
from ranks import Job, Rank

import evenstep
from documents import Documents
from hosts import Hosts, tell

COUNT, LIMIT = 500, 4


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


def on(job: Job, rank: int, *command: object) -> None:
    tell("nsenter", "-t", job.pid(rank), "-n", *command)


def test_connections_between_hosts_that_are_reset_are_an_error_on_both(
    tmp_path: Path, hosts: Hosts
) -> None:
    with Job(train, 2, FORK, folder=tmp_path, prepare=hosts.each(1)) as job:
        everybody = all_training(job, 2)
        on(job, 1, "ss", "-K", "dst", hosts.first.address)
        outcomes = end_of(job, everybody)
    # Gloo ends the process itself if its own thread was sending at that moment. The other is told.
    ended = [not each.error and "IoException" in each.log for each in outcomes]
    assert sum(ended) < 2
    for number, outcome in enumerate(outcomes):
        if not ended[number]:
            assert_died(outcome, "PeerError", f"rank {number} can make no further step")


def one_epoch(rank: Rank, cut: Path) -> tuple[list[int], float]:
    """Samples, and the longest wait for a step."""
    seen: list[int] = []
    longest, before = 0.0, time.monotonic()
    for number, (_, step) in enumerate(loader_over(Documents(COUNT)).steps()):
        seen += step.indices or ()
        longest = max(longest, time.monotonic() - before)
        before = time.monotonic()
        if number == 3:
            rank.say("training")
            while not cut.exists():
                time.sleep(0.01)
            before = time.monotonic()
        time.sleep(0.01)
    return seen, longest


@pytest.mark.parametrize("gone", [1.0, *(pytest.param(s, marks=pytest.mark.soak) for s in (3, 10))])
def test_a_network_that_is_gone_for_a_while_costs_time_and_no_sample(
    tmp_path: Path, hosts: Hosts, gone: float
) -> None:
    with Job(one_epoch, 2, tmp_path / "cut", folder=tmp_path, prepare=hosts.each(1)) as job:
        all_training(job, 2)
        on(job, 0, "ip", "link", "set", "cable0", "down")
        (tmp_path / "cut").touch()
        time.sleep(gone)
        on(job, 0, "ip", "link", "set", "cable0", "up")
        outcomes = job.join(30)
    for outcome in outcomes:
        assert not outcome.error, outcome.traceback
    assert sorted(i for outcome in outcomes for i in outcome.value[0]) == list(range(COUNT))
    longest = max(outcome.value[1] for outcome in outcomes)
    assert longest > gone / 2, "the network was not gone"
    print(f"{longest - gone:.2f} s longer than the network was gone")


def train_with_limit(rank: Rank) -> None:
    faults = evenstep.Faults(peer_timeout=LIMIT)
    for number, _ in enumerate(loader_over(Documents(100_000), faults=faults).steps()):
        if number == 3:
            rank.say("training")
        time.sleep(0.01)


@pytest.mark.slow
def test_a_host_that_loses_power_with_a_stopped_rank_is_an_error_on_the_others(
    tmp_path: Path, hosts: Hosts
) -> None:
    with Job(train_with_limit, 2, folder=tmp_path, prepare=hosts.each(1)) as job:
        all_training(job, 2)
        os.kill(job.pid(1), signal.SIGSTOP)
        time.sleep(LIMIT + 2)  # its system answers for it
        assert psutil.Process(job.pid(0)).status() != psutil.STATUS_ZOMBIE
        hosts.cable.change(cut=True)
        os.kill(job.pid(1), signal.SIGKILL)  # what it sends does not arrive
        outcome = job.join(15)[0]
    assert_died(outcome, "PeerError", "stopped answering: the host has lost power")
    assert "rank 1 (process" in outcome.message
