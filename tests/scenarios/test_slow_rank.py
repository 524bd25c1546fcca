"""A rank whose device is slow is named under DDP."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ranks import Job, Rank
from torch.nn.parallel import DistributedDataParallel

import evenstep
from evenstep.tools.report.run_record import read_run

PER_TOKEN = 1e-5  # seconds
SLOW, BEGINS = 1, 40  # a rank, and the step from which on it is slow


class Texts(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self.lengths = np.random.default_rng(0).integers(20, 200, 3_000)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": torch.full((int(self.lengths[index]),), index)}


class Sleeper(torch.nn.Module):
    """Takes as long as it has tokens, and longer where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
        self.factor = 1.0

    def forward(self, tokens: int) -> torch.Tensor:
        time.sleep(tokens * PER_TOKEN * self.factor)
        return self.last(self.first(torch.ones(2, 4))).sum()


def train(rank: Rank, path: Path) -> Any:
    """[steps] ranks named; [steps] what the rank tells of itself."""
    logging.getLogger("evenstep").addHandler(logging.StreamHandler())
    dataset = Texts()
    loader = evenstep.DataLoader(
        dataset,
        policy=evenstep.Even(1024),
        sampler=range(rank.rank, len(dataset), rank.world_size),
        memory=evenstep.Memory(buffer_size=256),
        step_log=path,
    )
    model = Sleeper()
    trained = DistributedDataParallel(model)
    loader.watch(model)
    named, paces = [], []
    for _, step in loader.steps():
        slow = rank.rank == SLOW and step.step >= BEGINS
        model.factor = 3.0 if slow else 1.0
        trained(step.padded_tokens).backward()
        named.append(step.slow)
        paces.append(loader._own_time.pace)
    loader.close()
    return named, paces


def test_a_slow_rank_is_named_and_the_other_waits_outside_its_own_time(tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with Job(train, 2, log, folder=tmp_path) as job:
        outcomes = job.join(120)
    (named, paces), (same, others) = (outcome.value for outcome in outcomes)
    first = next(number for number, slow in enumerate(named) if slow)
    assert BEGINS + 50 <= first <= BEGINS + 120
    assert all(len(slow) == 1 for slow in named[first:])
    assert {slow for slow in named if slow} == {slow for slow in same if slow}
    (found,) = named[-1]
    assert (found.rank, found.epoch) == (SLOW, 0)
    assert 0.3 < found.share < 2.2
    assert abs(found.step - BEGINS) <= 50
    assert others[-1].time - paces[-1].time > 250, "rank 0 waits for it, outside its own time"
    (said,) = (line for line in outcomes[0].log.splitlines() if "rank 1" in line)
    assert "rank 1 needs" in said
    assert f"since step {found.step} of epoch 0" in said
    assert "rank 1" not in outcomes[1].log, "only one rank says it"
    ((shown, until),) = read_run(log).slow
    assert shown._replace(share=0) == found._replace(share=0)
    assert until is None
