"""The released package of Online Dynamic Batching, with the arguments that its README shows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import odb
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler, Sampler

from benchmarks.peers.adapters.torch import Texts, mixed
from benchmarks.peers.work import Batch, Work, pad, texts

PREFETCH = 64  # of each worker, in its README


class Tensors(Texts):
    """Samples as the package wants them: tensors alone."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        input_ids = torch.from_numpy(sample["input_ids"])
        return {"id": torch.tensor(sample["id"]), "input_ids": input_ids}


class Batches:
    def __init__(self, work: Work, dataset: Any, sampler: Sampler[int]) -> None:
        self.loader = odb.ODBDataLoader(
            dataset,
            token_budget=work.max_tokens,
            batch_size=1,
            sampler=sampler,
            num_workers=work.workers,
            prefetch_factor=PREFETCH,
            collate_fn=pad,
            loss_scaling="exact",
            join=True,
        )

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.loader:
            odb.pop_step_info(batch, loss_scaling="exact")
            yield batch


def _join() -> None:
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")


def padded(work: Work) -> Batches:
    _join()
    dataset = Tensors(texts(work.folder))
    sampler: Any = DistributedSampler(
        dataset, num_replicas=work.ranks, rank=work.rank, shuffle=True, seed=work.seed
    )
    return Batches(work, dataset, sampler)


def mixture(work: Work) -> Batches:
    _join()
    dataset, sampler = mixed(work)
    return Batches(work, Tensors(dataset.rows), sampler)
