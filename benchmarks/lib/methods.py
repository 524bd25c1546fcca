"""Ways to form batches, each used as its own users do, behind one interface.

A step is a list of micro-batches of one rank and the weight of each one's mean loss. Fixed sizes
have to leave room for the longest samples, so they take several micro-batches to a step; the other
methods fill the memory with one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import evenstep
from evenstep.cost import Cost
from evenstep_demos.text.prepared_text import Task

Batch = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What all methods are given."""

    max_tokens: int
    """Padded tokens that fit into memory."""
    rows: int
    """Samples of a micro-batch of fixed size: as many of the longest as fit."""
    steps: int
    """Steps of a method with fixed sizes: as many as `Even` makes."""
    odb_buffer: int
    """Samples that ODB may hold on a rank; evenstep sizes its windows by itself."""
    workers: int
    cost: Cost
    """Given to `Even`."""

    def samples(self, task: Task) -> int:
        """Samples of a step on a rank, about, where their number is fixed."""
        return max(1, round(len(task.lengths) / self.steps / dist.get_world_size()))


@dataclass(kw_only=True)
class Step:
    batches: list[Batch]
    weights: list[float] | None
    """None: each predicted token of all ranks counts the same, and the ranks have to ask."""
    own: int
    """Samples of this rank."""
    samples: int
    """Samples of all ranks."""


class Method:
    """One epoch on this rank."""

    package = "evenstep.loader"
    """Imported before the clock starts."""

    def __init__(self, task: Task, setting: Setting, seed: int) -> None:
        import_module(self.package)
        self.task, self.setting, self.seed = task, setting, seed
        self.dataset: Any = task.training
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.common: dict[str, Any] = {
            "collate_fn": task.collate,
            "num_workers": setting.workers,
            "multiprocessing_context": "fork",
        }

    def __iter__(self) -> Iterator[Step]:
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the epoch has started."""

    def _steps(self, loader: DataLoader[Any], *, mean: bool) -> Iterator[Step]:
        """As many micro-batches to a step as make `Setting.steps`, one more or less."""
        steps = min(self.setting.steps, len(loader))
        number, batches = 0, []
        for taken, batch in enumerate(loader, 1):
            batches.append(batch)
            if taken == (number + 1) * len(loader) // steps:
                weights = [1 / len(batches)] * len(batches) if mean else None
                own = sum(len(b["input_ids"]) for b in batches)
                yield Step(batches=batches, weights=weights, own=own, samples=self.ranks * own)
                number, batches = number + 1, []


class Fixed(Method):
    """torch's DataLoader and DistributedSampler; every rank's mean loss counts the same."""

    def __iter__(self) -> Iterator[Step]:
        sampler: Any = DistributedSampler(self.dataset, seed=self.seed)
        rows = self.setting.rows
        loader = DataLoader(self.dataset, batch_size=rows, sampler=sampler, **self.common)
        return self._steps(loader, mean=True)


class GroupByLength(Method):
    """Hugging Face's `LengthGroupedSampler` as its Trainer has it: the order is that of groups for
    a whole step, cut into micro-batches, which are dealt out to the ranks in turn; and the loss is
    the mean over the step's tokens."""

    package = "transformers.trainer_pt_utils"

    def __iter__(self) -> Iterator[Step]:
        from transformers.trainer_pt_utils import LengthGroupedSampler

        samples = self.setting.samples(self.task)
        order = list(
            LengthGroupedSampler(
                samples,
                dataset=self.dataset,  # which it reads through, for the lengths
                generator=torch.Generator().manual_seed(self.seed),
            )
        )
        rows = self.setting.rows
        batches = [order[i : i + rows] for i in range(0, len(order), rows)]
        rest: list[int] = []  # a multiple of the ranks, as all samples are
        while len(batches) % self.ranks:
            rest += batches.pop()
        batches += [rest[rank :: self.ranks] for rank in range(self.ranks) if rest]
        mine = batches[self.rank :: self.ranks]
        loader = DataLoader(self.dataset, batch_sampler=mine, **self.common)
        return self._steps(loader, mean=False)


class ODB(Method):
    """The released package, with the arguments that its README shows."""

    package = "odb"

    def __iter__(self) -> Iterator[Step]:
        import odb

        sampler: Any = DistributedSampler(self.dataset, seed=self.seed)
        loader = odb.ODBDataLoader(
            self.dataset,
            token_budget=self.setting.max_tokens,
            batch_size=1,
            sampler=sampler,
            # It buffers what it prefetches: 4 workers x 64 in the README.
            prefetch_factor=self.setting.odb_buffer // self.setting.workers,
            loss_scaling="exact",
            join=True,  # shards are equal, so no rank runs out before the others
            **self.common,
        )
        for batch in loader:
            info = odb.pop_step_info(batch, loss_scaling="exact")
            yield Step(
                batches=[batch],
                weights=[float(info.loss_scale)],
                own=len(batch["input_ids"]),
                samples=info.all_samples_this_step,
            )


class Even(Method):
    """evenstep's loader under its default policy, whose updates are in several groups on few
    ranks."""

    def __iter__(self) -> Iterator[Step]:
        self._loader = evenstep.DataLoader(
            self.dataset,
            policy=evenstep.Even(max_tokens=self.setting.max_tokens, cost=self.setting.cost),
            update_tokens="auto",
            shuffle=True,
            seed=self.seed,
            **self.common,
        )
        update: list[tuple[Batch, evenstep.StepInfo]] = []
        for batch, info in self._loader.steps():
            update.append((batch, info))
            if info.ends_update:
                yield Step(
                    batches=[batch for batch, _ in update],
                    weights=[info.loss_scale for _, info in update],
                    own=sum(info.samples for _, info in update),
                    samples=sum(info.global_samples for _, info in update),
                )
                update = []

    def close(self) -> None:
        self._loader.close()


METHODS: dict[str, type[Method]] = {
    "fixed": Fixed,
    "group-by-length": GroupByLength,
    "odb": ODB,
    "even": Even,
}
