"""The two ways of forming batches, behind one interface, so that one training loop serves both.

Both shuffle the same samples, use the same collator and as many worker processes. Both scale the
loss so that the gradient of an update, added up over its steps and averaged over ranks, is that of
the token mean over all its samples: evenstep's StepInfo brings the scale, the fixed batches add up
a count over the steps of the update and all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import evenstep
from evenstep_demos.text.options import TrainingOptions
from evenstep_demos.text.task import Task


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


class Batches(Protocol):
    """One epoch of batches on one rank."""

    def __iter__(self) -> Iterator[Any]:
        """Batches as the loader yields them; time spent in it is waiting for data."""
        ...

    def rank_batch(self, item: Any) -> RankBatch:
        """A yielded batch as the training loop needs it. All ranks must call it together."""
        ...


class FixedBatches:
    """torch's DataLoader and DistributedSampler, with a batch size."""

    def __init__(self, task: Task, batch_size: int, options: TrainingOptions, seed: int) -> None:
        self._accumulate = options.accumulate
        self._totals = torch.empty(0)
        self._sampler: DistributedSampler[Any] = DistributedSampler(task.training, seed=seed)
        self._loader = DataLoader(
            task.training,
            batch_size=batch_size,
            sampler=self._sampler,
            collate_fn=task.collate,
            num_workers=options.num_workers,
        )

    def __iter__(self) -> Iterator[Any]:
        self._sampler.set_epoch(0)
        batches = iter(self._loader)
        while update := list(islice(batches, self._accumulate)):
            for micro_step in range(len(update)):
                yield update, micro_step

    def rank_batch(self, item: Any) -> RankBatch:
        update, micro_step = item
        if micro_step == 0:
            self._totals = torch.tensor([[_supervised(one), len(one["labels"])] for one in update])
            dist.all_reduce(self._totals)
        batch = update[micro_step]
        mask = batch["attention_mask"]
        global_supervised = int(self._totals[:, 0].sum())
        return RankBatch(
            batch=batch,
            loss_scale=dist.get_world_size() * _supervised(batch) / global_supervised,
            samples=len(mask),
            tokens=int(mask.sum()),
            padded_tokens=mask.numel(),
            global_samples=int(self._totals[micro_step, 1]),
            ends_update=micro_step == len(update) - 1,
        )


def _supervised(batch: Mapping[str, torch.Tensor]) -> int:
    return int((batch["labels"][:, 1:] >= 0).sum())


class EvenBatches:
    """evenstep's DataLoader with its default policy, `Even`."""

    def __init__(self, task: Task, max_tokens: int, options: TrainingOptions, seed: int) -> None:
        self._loader = evenstep.DataLoader(
            task.training,
            policy=evenstep.Even(max_tokens=max_tokens, cost=task.cost),
            collate_fn=task.collate,
            shuffle=True,
            seed=seed,
            num_workers=options.num_workers,
            accumulate=options.accumulate,
        )

    def __iter__(self) -> Iterator[Any]:
        self._loader.set_epoch(0)
        return iter(self._loader.steps())

    def rank_batch(self, item: Any) -> RankBatch:
        batch, step = item
        return RankBatch(
            batch=batch,
            loss_scale=step.loss_scale,
            samples=step.samples,
            tokens=step.tokens,
            padded_tokens=step.padded_tokens,
            global_samples=step.global_samples,
            ends_update=step.ends_update,
        )
