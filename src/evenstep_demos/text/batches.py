"""The two ways of forming batches, behind one face, so that one training loop serves both.

Both shuffle the same samples, collate with the same collator, and use equally many worker
processes. Both scale the loss so that the averaged gradient is that of the token mean over the
global batch; evenstep's StepInfo brings the scale along, the fixed batches have to ask the other
ranks in every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import evenstep
from evenstep_demos.text.options import DemoOptions
from evenstep_demos.text.workload import END, Documents

__all__ = ["Batches", "EvenBatches", "FixedBatches", "Share"]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's part of one step."""

    batch: Mapping[str, torch.Tensor]
    loss_scale: float
    samples: int
    tokens: int
    padded_tokens: int
    global_samples: int
    """Of all ranks."""


class Batches(Protocol):
    """One epoch of batches on one rank."""

    def __iter__(self) -> Iterator[Any]:
        """Batches as the loader gives them; time spent in here is waiting for data."""
        ...

    def share(self, item: Any) -> Share:
        """What the training loop needs of a batch."""
        ...


class FixedBatches:
    """torch's DataLoader and DistributedSampler."""

    def __init__(self, dataset: Documents, batch_size: int, options: DemoOptions) -> None:
        self._sampler: DistributedSampler[Any] = DistributedSampler(dataset, seed=options.seed)
        self._loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=self._sampler,
            collate_fn=evenstep.PadCollator(pad_token_id=END),
            num_workers=options.num_workers,
        )

    def __iter__(self) -> Iterator[Any]:
        self._sampler.set_epoch(0)
        return iter(self._loader)

    def share(self, item: Any) -> Share:
        mask = item["attention_mask"]
        supervised = int((item["labels"][:, 1:] >= 0).sum())
        everybody = torch.tensor([supervised, len(mask)])
        dist.all_reduce(everybody)
        global_supervised, global_samples = everybody.tolist()
        return Share(
            batch=item,
            loss_scale=dist.get_world_size() * supervised / global_supervised,
            samples=len(mask),
            tokens=int(mask.sum()),
            padded_tokens=mask.numel(),
            global_samples=global_samples,
        )


class EvenBatches:
    """evenstep's DataLoader with a token budget."""

    def __init__(self, dataset: Documents, options: DemoOptions) -> None:
        self._loader = evenstep.DataLoader(
            dataset,
            policy=evenstep.TokenBudget(max_tokens=options.max_tokens),
            collate_fn=evenstep.PadCollator(pad_token_id=END),
            shuffle=True,
            seed=options.seed,
            num_workers=options.num_workers,
            buffer_size=options.buffer_size,
        )

    def __iter__(self) -> Iterator[Any]:
        self._loader.set_epoch(0)
        return iter(self._loader.steps())

    def share(self, item: Any) -> Share:
        batch, step = item
        return Share(
            batch=batch,
            loss_scale=step.loss_scale,
            samples=step.samples,
            tokens=step.tokens,
            padded_tokens=step.padded_tokens,
            global_samples=step.global_samples,
        )
