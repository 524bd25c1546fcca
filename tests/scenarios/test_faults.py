"""Death of a worker, a batcher, a rank: the survivors say who died, soon, and nothing survives."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch.distributed as dist
from faults import (
    FORK,
    THREADS,
    WITHIN,
    Sticky,
    Wordy,
    all_training,
    assert_died,
    end_of,
    loader_over,
    train,
)
from ranks import Job, Rank

from documents import Documents
from evenstep.errors import LoaderDiedError, PeerError


@pytest.mark.parametrize(
    ("killed", "dataset", "others_say"),
    [
        ("workers", None, "LoaderDiedError"),
        ("batcher", Wordy(100_000), "batcher"),
    ],
    ids=["worker", "batcher that sends text"],
)
def test_a_killed_worker_or_batcher_is_named_on_every_rank(
    tmp_path: Path, killed: str, dataset: Any, others_say: str
) -> None:
    with Job(train, 2, FORK, dataset, folder=tmp_path) as job:
        everybody = all_training(job, 2)
        process = getattr(everybody[1], killed)[0]
        os.kill(process, signal.SIGKILL)
        other, own = end_of(job, everybody)
    assert_died(own, "LoaderDiedError", "rank 1", killed.removesuffix("s"), f"{process}")
    assert_died(other, "PeerError", "rank 1 failed", others_say, f"{process}")


@pytest.mark.parametrize(
    ("world_size", "number", "workers"),
    [(3, signal.SIGKILL, FORK), (2, signal.SIGTERM, THREADS)],
    ids=["3-SIGKILL", "2-SIGTERM-threads"],
)
def test_a_killed_rank_is_named_on_every_other(
    tmp_path: Path, world_size: int, number: signal.Signals, workers: dict[str, Any]
) -> None:
    with Job(train, world_size, workers, folder=tmp_path) as job:
        everybody = all_training(job, world_size)
        victim = world_size - 2
        job.signal(victim, number)
        outcomes = end_of(job, everybody)
    assert "outcome" not in outcomes[victim].said
    assert not outcomes[victim].error, "it died by the signal, without a last word"
    for rank, outcome in enumerate(outcomes):
        if rank != victim:
            assert_died(outcome, "PeerError", f"rank {victim} (process {job.pid(victim)} ", "died")


def test_a_rank_killed_while_all_wait_for_their_samples_is_named(tmp_path: Path) -> None:
    with Job(train, 2, FORK, Sticky(0), 0, 0, folder=tmp_path) as job:
        all_training(job, 2)
        time.sleep(1)  # long enough for a tick or two
        job.signal(0, signal.SIGKILL)
        outcome = job.join(WITHIN)[1]
    assert_died(outcome, "PeerError", f"rank 0 (process {job.pid(0)} ", "died")


def test_an_interrupt_ends_every_rank_and_all_it_started(tmp_path: Path) -> None:
    with Job(train, 2, FORK, folder=tmp_path) as job:
        everybody = all_training(job, 2)
        for rank in range(2):
            job.signal(rank, signal.SIGINT, children=True)
        outcomes = end_of(job, everybody)
    for outcome in outcomes:
        assert outcome.error in ("KeyboardInterrupt", "PeerError"), outcome.traceback
        # One traceback of its own, and none of a child or a thread.
        assert outcome.log.count("Traceback (most recent call last)") == 1, outcome.log
    assert "KeyboardInterrupt" in [outcome.error for outcome in outcomes]


def exit_on_request(rank: Rank, workers: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))  # as trainers do that save first
    train(rank, workers)


@pytest.mark.parametrize(
    ("function", "number", "error", "workers"),
    [
        (train, signal.SIGINT, "KeyboardInterrupt", FORK),
        (exit_on_request, signal.SIGTERM, "SystemExit", THREADS),
    ],
    ids=["SIGINT", "SIGTERM with a handler"],
)
def test_a_rank_that_is_asked_to_end_does_and_is_named_on_the_other(
    tmp_path: Path, function: Any, number: signal.Signals, error: str, workers: dict[str, Any]
) -> None:
    with Job(function, 2, workers, folder=tmp_path) as job:
        everybody = all_training(job, 2)
        job.signal(0, number)
        asked, other = end_of(job, everybody)
    assert asked.error == error, asked.traceback + asked.log
    assert asked.log.count("Traceback (most recent call last)") <= 1, asked.log
    assert_died(other, "PeerError", "rank 0")


def train_with_hanging(rank: Rank, hang: str) -> None:
    dataset = Sticky(200) if (rank.rank, hang) == (1, "sample") else None
    train(rank, {**FORK, "timeout": 1}, dataset)


@pytest.mark.parametrize("hang", [pytest.param("sample", marks=pytest.mark.slow), "process"])
def test_a_worker_that_hangs_longer_than_the_timeout_is_named_on_every_rank(
    tmp_path: Path, hang: str
) -> None:
    with Job(train_with_hanging, 2, hang, folder=tmp_path) as job:
        everybody = all_training(job, 2)
        if hang == "process":  # as one that the operating system holds up
            os.kill(everybody[1].workers[0], signal.SIGSTOP)
        other, own = end_of(job, everybody)
    cause = "rank 1, preparing samples: DataLoader timed out after 1 seconds"
    assert_died(own, "LoaderDiedError", cause)
    assert_died(other, "PeerError", "rank 1 failed: LoaderDiedError", cause)


def test_a_trainer_ended_while_a_worker_is_stuck_leaves_nothing_behind(tmp_path: Path) -> None:
    with Job(train, 1, FORK, Sticky(200), folder=tmp_path) as job:
        everybody = all_training(job, 1)
        assert len(everybody[0].batcher) == 1
        assert len(everybody[0].workers) == 2
        job.signal(0, signal.SIGTERM)
        end_of(job, everybody)


def leave(rank: Rank, workers: dict[str, Any], how: str) -> int:
    steps = loader_over(Documents(100_000), **workers).steps()  # which the traceback keeps alive
    for number, _ in enumerate(steps):
        if rank.rank == 1 and number == 5:
            if how == "raise":
                raise ZeroDivisionError("no gradient")
            break
    return number


@pytest.mark.parametrize(("how", "workers"), [("raise", FORK), ("break", THREADS)])
def test_a_rank_that_leaves_alone_is_named_on_the_other(
    tmp_path: Path, how: str, workers: dict[str, Any]
) -> None:
    with Job(leave, 2, workers, how, folder=tmp_path) as job:
        stays, leaves = job.join(WITHIN)
    assert_died(stays, "PeerError", "rank 1 left epoch 0 early")
    assert (leaves.error, leaves.value) == (
        ("ZeroDivisionError", None) if how == "raise" else ("", 5)
    )
    assert leaves.log.count("Traceback (most recent call last)") == (how == "raise"), leaves.log


def lose_a_worker_between_passes(rank: Rank) -> list[Any]:
    loader = loader_over(Documents(100), **FORK, persistent_workers=True)
    results: list[Any] = []
    for number in range(3):
        try:
            results.append(sum(len(step.indices) for _, step in loader.steps()))
        except (LoaderDiedError, PeerError) as error:
            results.append(type(error).__name__)
        dist.barrier()
        if rank.rank == 0 and number == 0:
            worker = psutil.Process().children()[0].children()[0]
            worker.kill()
        dist.barrier()
    loader.close()
    return results


def test_persistent_workers_that_died_between_passes_are_replaced(tmp_path: Path) -> None:
    with Job(lose_a_worker_between_passes, 2, folder=tmp_path) as job:
        outcomes = job.join(20)
    for outcome in outcomes:
        assert outcome.value is not None, outcome.traceback
    first, second, third = zip(*(outcome.value for outcome in outcomes))
    assert sum(first) == sum(third) == 100
    # The pass after may notice, on both ranks, or be whole.
    assert second == ("LoaderDiedError", "PeerError") or sum(second) == 100
