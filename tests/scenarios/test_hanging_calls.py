"""`timeout`: a call that hangs on one rank ends all and says where; a slow trainer does not."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from faults import FORK, THREADS, Sticky, all_training, assert_died, end_of, loader_over, train
from ranks import Job, Rank, run

import evenstep
from documents import Documents

with_and_without_workers = pytest.mark.parametrize(
    "workers", [FORK, THREADS], ids=["workers", "threads"]
)


class StickyPack(evenstep.PackCollator):
    """From some call on, each takes longer than any test."""

    calls = 0

    def __call__(self, samples: Any) -> Any:
        self.calls += 1
        if self.calls > 8:
            time.sleep(3600)
        return super().__call__(samples)


def hang_in_collate(rank: Rank, workers: dict[str, Any]) -> None:
    hanging = {"collate_fn": StickyPack()} if rank.rank else {}
    train(rank, {**workers, "timeout": 1, **hanging})


def hang_in_dataset(rank: Rank, workers: dict[str, Any]) -> None:
    train(rank, {**workers, "timeout": 1}, Sticky(200) if rank.rank else None)


@pytest.mark.parametrize(
    ("function", "workers", "call", "place"),
    [
        (hang_in_collate, FORK, "collate_fn at step 8 of epoch 0, samples [", "StickyPack"),
        (hang_in_collate, THREADS, "collate_fn at step 8 of epoch 0, samples [", "StickyPack"),
        (hang_in_dataset, THREADS, "sample 2", "faults.py"),
    ],
    ids=["collate-workers", "collate-threads", "dataset-threads"],
)
@pytest.mark.timeout(60)
def test_a_call_that_hangs_longer_than_the_timeout_is_named_on_every_rank(
    tmp_path: Path, function: Any, workers: dict[str, Any], call: str, place: str
) -> None:
    with Job(function, 2, workers, folder=tmp_path) as job:
        everybody = all_training(job, 2)
        other, own = end_of(job, everybody)
    assert_died(own, "LoaderDiedError", f"rank 1: {call}", "over timeout=1")
    assert_died(other, "PeerError", f"rank 1 failed: LoaderDiedError: rank 1: {call}")
    assert "(most recent call first)" in own.traceback
    assert place in own.traceback or "__call__" in own.traceback


def pause_in_training(rank: Rank, workers: dict[str, Any]) -> int:
    """Takes longer than `timeout` where that does not count: in the trainer."""
    count = 0
    for _, step in loader_over(Documents(200), timeout=0.7, **workers).steps():
        count += len(step.indices or ())
        if step.step == 2 and rank.rank:
            time.sleep(1.5)
    return count


@with_and_without_workers
@pytest.mark.timeout(60)
def test_a_trainer_may_take_longer_than_the_timeout(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    assert sum(run(pause_in_training, 2, workers, folder=tmp_path)) == 200
