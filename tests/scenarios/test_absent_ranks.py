"""A rank that never begins a pass, or dies while it connects: an error on the others once it has
ended, or after a time limit.

Until then they wait, and `test_waiting` shows that they say for whom.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
from pathlib import Path

import pytest
import torch.distributed as dist
from faults import THREADS, WITHIN, assert_died, loader_over
from ranks import Job, Rank

from documents import Documents
from evenstep.loader.transport import rank_exchange

LIMIT = 1.0  # seconds


def make_passes(rank: Rank, passes: int, stays: bool) -> None:
    """Rank 1 makes fewer than the others, and ends, or goes on without a loader, as if all were
    well."""
    loader = loader_over(Documents(60), **THREADS)
    for number in range(3 if rank.rank != 1 else passes):
        rank.say("begins", number)
        for _ in loader:
            pass
    if rank.rank == 1:
        time.sleep(0.3)  # so that the others wait in the collective
    if stays:
        loader.close()
        rank.heard(0, "outcome")


@pytest.mark.parametrize(
    ("passes", "stays", "error"),
    [
        (0, False, "could not connect to the other ranks"),
        (1, False, "rank 1 (process "),
        (1, True, "rank 1 (process "),
    ],
)
def test_a_rank_that_ends_without_beginning_a_pass_is_missed(
    tmp_path: Path, passes: int, stays: bool, error: str
) -> None:
    with Job(make_passes, 3, passes, stays, folder=tmp_path) as job:
        first, absent, last = job.join(WITHIN)
    assert not absent.error, absent.traceback
    for outcome in (first, last):
        assert outcome.said["begins"] == passes
        assert_died(outcome, "PeerError", error)


def never_begin(rank: Rank) -> None:
    limit = datetime.timedelta(seconds=LIMIT)
    loader = loader_over(Documents(60), group=dist.new_group([0, 1], timeout=limit))
    if rank.rank == 1:
        rank.heard(0, "outcome")
        return
    for _ in loader:
        pass


def test_a_rank_that_never_begins_is_missed_after_the_groups_time_limit(tmp_path: Path) -> None:
    with Job(never_begin, 2, folder=tmp_path) as job:
        waits, absent = job.join(WITHIN + LIMIT)
    assert not absent.error, absent.traceback
    assert_died(waits, "PeerError", "rank 0 could not connect to the other ranks")


def die_while_connecting(rank: Rank) -> None:
    rank_exchange._CONNECT_LIMIT = datetime.timedelta(seconds=LIMIT)
    if rank.rank == 1:
        dist.new_group = lambda *arguments, **options: os.kill(os.getpid(), signal.SIGKILL)
    for _ in loader_over(Documents(60), **THREADS):
        pass


def test_a_rank_that_dies_while_it_connects_is_missed_after_a_time_limit(tmp_path: Path) -> None:
    with Job(die_while_connecting, 3, folder=tmp_path) as job:
        first, dead, last = job.join(WITHIN + LIMIT)
    assert not dead.error
    for outcome in (first, last):
        assert_died(outcome, "PeerError", "could not connect to the other ranks")
