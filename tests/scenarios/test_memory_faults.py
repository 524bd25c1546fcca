"""Shared memory that runs out on one rank is one error on every rank: how much, and what to lower.

What runs out is a limit of one process, since a test must not take all memory of the machine: its
largest file, which anonymous memory is too.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest
import torch
from faults import FORK, all_training, assert_died, end_of, train
from ranks import Job, Rank

import evenstep
from documents import Documents

LIMIT = 1 << 20  # bytes
LATER = 200  # from this document on, they are large
ELEMENTS = 100_000


class Swelling(Documents):
    """Tokens that carry pixels: a few at first, from some document on more than the limit."""

    def __init__(self, later: int = LATER) -> None:
        super().__init__(100_000)
        self.later = later

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels = torch.zeros(ELEMENTS if index >= self.later else 10)
        return {**super().__getitem__(index), "pixels": pixels}


def limit_memory(worker: int = 0) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


class Collate:
    """Pads tokens; in the limited batcher, pixels too, either by evenstep's own means, which make
    them in shared memory, or in memory of its own that is copied there."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.steps = 0

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        self.steps += 1
        if self.how != "tokens" and self.steps == 1:
            limit_memory()
        pixels = [sample["pixels"] for sample in samples]
        tokens = [{k: v for k, v in s.items() if k != "pixels"} for s in samples]
        batch = evenstep.PadCollator()(tokens)
        if self.steps > 5 and self.how == "lent":
            rows = [{"input_ids": torch.zeros(ELEMENTS)} for _ in range(8)]
            batch["pixels"] = evenstep.PadCollator(pad_values={"input_ids": 0})(rows)["input_ids"]
        if self.steps > 5 and self.how == "copied":
            batch["pixels"] = torch.zeros(8, ELEMENTS)
        batch["count"] = len(pixels)
        return batch


def starve(rank: Rank, where: str) -> None:
    """Trains on and on; on rank 1 some process gets no more shared memory."""
    mine = where if rank.rank == 1 else ""
    options: dict[str, Any] = {"collate_fn": Collate("tokens")}
    dataset = Swelling(LATER if mine == "worker" else 100_000)
    if mine == "worker":
        options["worker_init_fn"] = limit_memory
    elif mine:
        options["collate_fn"] = Collate(mine)
    train(rank, {**FORK, **options}, dataset)


@pytest.mark.parametrize("where", ["worker", "lent", "copied"])
def test_shared_memory_that_runs_out_is_named_on_every_rank(tmp_path: Path, where: str) -> None:
    with Job(starve, 2, where, folder=tmp_path) as job:
        other, own = end_of(job, all_training(job, 2))
    said = ("shared memory ran out", "bytes", "lower buffer_size, prefetch or num_workers")
    assert_died(own, "LoaderDiedError", *said)
    assert_died(other, "PeerError", "rank 1 failed: LoaderDiedError", *said)
    # One error, and not that of each child and thread.
    assert "Traceback" not in own.message
    assert own.log.count("Process ForkProcess") == 1, own.log
