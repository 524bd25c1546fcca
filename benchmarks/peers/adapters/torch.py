"""torch's DataLoader: map-style datasets, `collate_fn`, and a weighted sampler for the mixture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    WeightedRandomSampler,
)

from benchmarks.peers.work import SOURCES, Batch, Work, decode, jpegs, pad, stack, texts, tokenize


class Texts(Dataset[dict[str, Any]]):
    def __init__(self, rows: Iterable[tuple[int, str]]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return tokenize(*self.rows[index])


class Pictures(Dataset[dict[str, Any]]):
    def __init__(self, folder: str) -> None:
        self.paths = jpegs(folder)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = Path(self.paths[index])
        return decode(int(path.stem), path.read_bytes())


def loader(
    work: Work,
    dataset: Any,
    collate: Any,
    sampler: Sampler[int] | None = None,
    of: Any = DataLoader,
) -> Iterable[Batch]:
    if sampler is None:
        sampler = DistributedSampler(
            dataset, num_replicas=work.ranks, rank=work.rank, shuffle=True, seed=work.seed
        )
    made: Iterable[Batch] = of(
        dataset,
        batch_size=work.batch_size,
        sampler=sampler,
        num_workers=work.workers,
        collate_fn=collate,
    )
    return made


def padded(work: Work, of: Any = DataLoader) -> Iterable[Batch]:
    return loader(work, Texts(texts(work.folder)), pad, of=of)


def images(work: Work, of: Any = DataLoader) -> Iterable[Batch]:
    return loader(work, Pictures(work.folder), stack, of=of)


def mixed(work: Work) -> tuple[Texts, WeightedRandomSampler]:
    """All sources as one dataset, and a sampler that draws by weight."""
    import torch

    rows, weights = [], []
    for source, weight in zip(range(SOURCES), work.weights()):
        own = list(texts(work.folder, source))
        rows += own
        weights += [weight / len(own)] * len(own)
    generator = torch.Generator().manual_seed(work.seed + work.rank)
    sampler = WeightedRandomSampler(weights, work.samples // work.ranks, generator=generator)
    return Texts(rows), sampler


def mixture(work: Work, of: Any = DataLoader) -> Iterable[Batch]:
    dataset, sampler = mixed(work)
    return loader(work, dataset, pad, sampler, of=of)
