"""The two ways of forming batches, behind one interface, so that one training loop serves both.

Both shuffle the same samples, use the same collator and as many worker processes, and scale the
loss so that the gradient of an update, added up over its steps and averaged over ranks, is that of
the token mean over all its samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import evenstep
from evenstep_demos.text.budget import ACCUMULATE
from evenstep_demos.text.prepared_text import Task

_WORKERS = 1  # loader processes per rank


@dataclass(frozen=True, kw_only=True)
class RankBatch:
    """One rank's part of a step, as the training loop needs it."""

    batch: Mapping[str, torch.Tensor]
    loss_scale: float
    samples: int
    tokens: int
    padded_tokens: int
    global_samples: int
    """Samples of all ranks."""
    ends_update: bool
    """Whether the optimizer steps after this batch."""


def fixed_batches(
    task: Task, batch_size: int, seed: int, waits: list[float]
) -> Iterator[RankBatch]:
    """One epoch of torch's DataLoader and DistributedSampler. All ranks must iterate together.

    Args:
        waits: takes the seconds spent in the loader.
    """
    loader = DataLoader(
        task.training,
        batch_size=batch_size,
        sampler=DistributedSampler(task.training, seed=seed),
        collate_fn=task.collate,
        num_workers=_WORKERS,
    )
    batches = _timed(loader, waits)
    while update := list(islice(batches, ACCUMULATE)):
        # Supervised tokens and samples of each step, of all ranks.
        totals = torch.tensor([[_supervised(one), len(one["labels"])] for one in update])
        dist.all_reduce(totals)
        for number, batch in enumerate(update):
            mask = batch["attention_mask"]
            yield RankBatch(
                batch=batch,
                loss_scale=dist.get_world_size() * _supervised(batch) / int(totals[:, 0].sum()),
                samples=len(mask),
                tokens=int(mask.sum()),
                padded_tokens=mask.numel(),
                global_samples=int(totals[number, 1]),
                ends_update=number == len(update) - 1,
            )


def even_batches(task: Task, max_tokens: int, seed: int, waits: list[float]) -> Iterator[RankBatch]:
    """One epoch of evenstep's DataLoader with its default policy; see `fixed_batches`."""
    loader = evenstep.DataLoader(
        task.training,
        policy=evenstep.Even(max_tokens=max_tokens),
        collate_fn=task.collate,
        shuffle=True,
        seed=seed,
        num_workers=_WORKERS,
        accumulate=ACCUMULATE,
    )
    for batch, step in _timed(loader.steps(), waits):
        yield RankBatch(
            batch=batch,
            loss_scale=step.loss_scale,
            samples=step.samples,
            tokens=step.tokens,
            padded_tokens=step.padded_tokens,
            global_samples=step.global_samples,
            ends_update=step.ends_update,
        )


def _timed(batches: Iterable[Any], waits: list[float]) -> Iterator[Any]:
    asked = time.perf_counter()
    stream = iter(batches)
    while True:
        item = next(stream, None)
        waits.append(time.perf_counter() - asked)
        if item is None:
            return
        yield item
        asked = time.perf_counter()


def _supervised(batch: Mapping[str, torch.Tensor]) -> int:
    return int((batch["labels"][:, 1:] >= 0).sum())
