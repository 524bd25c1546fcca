"""`timeout`: a call that hangs on one rank ends all of them, and says where it hangs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from faults import FORK, THREADS, all_training, assert_died, end_of, train
from ranks import Job, Rank

import evenstep


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


@pytest.mark.parametrize("workers", [FORK, THREADS], ids=["workers", "threads"])
def test_a_call_that_hangs_longer_than_the_timeout_is_named_on_every_rank(
    tmp_path: Path, workers: dict[str, Any]
) -> None:
    with Job(hang_in_collate, 2, workers, folder=tmp_path) as job:
        everybody = all_training(job, 2)
        other, own = end_of(job, everybody)
    call = "rank 1: collate_fn at step 8 of epoch 0, samples ["
    assert_died(own, "LoaderDiedError", call, "over timeout=1")
    assert_died(other, "PeerError", f"rank 1 failed: LoaderDiedError: {call}")
    assert "test_hanging_calls.py" in own.traceback.partition("(most recent call first)")[2]
