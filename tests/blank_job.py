"""A job of two ranks on rows of which few have images: in some steps one rank has none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset

import evenstep
from evenstep.batch import unbatch
from families import FAMILIES

FAMILY = FAMILIES["Qwen2.5-VL"]
IMAGES = {1: 1, 5: 2, 14: 1}
"""Of three rows in several steps, one at least is trained on beside a rank that has none."""
RATE = 0.01


class FewImages(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 20

    def __getitem__(self, number: int) -> dict[str, Any]:
        return FAMILY.row(number, images=IMAGES.get(number, 0))


ROWS = FewImages()


class Prepared(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """The same rows, with tokens already."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return unbatch(FAMILY.collate([ROWS[number]]))


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Half of the rows on each of two ranks."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[Any]:
        half = len(ROWS) // 2
        return (ROWS[self.rank * half + number] for number in range(half))


def collate_again(collate_fn: Any = FAMILY.collate) -> evenstep.PreparingCollator:
    return evenstep.PreparingCollator(collate_fn=collate_fn, again=True)


def loader_of(
    blank: Any, collate_fn: Any = FAMILY.collate, dataset: Any = ROWS, **options: Any
) -> Any:
    return evenstep.DataLoader(
        dataset,
        policy=evenstep.Even(max_tokens=256),
        collate_fn=collate_fn,
        blank=blank,
        memory=evenstep.Memory(buffer_size=8),
        faults=evenstep.Faults(warn_after=None),
        **options,
    )


def flat(parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def trained_alone(steps: Sequence[Sequence[int]]) -> torch.Tensor:
    """Parameters after these steps in one process.

    Args:
        steps: rows of all ranks, of each step.
    """
    model = FAMILY.model(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for rows in steps:
        model(**FAMILY.collate([ROWS[number] for number in rows])).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return flat(list(model.parameters()))


def check(ranks: Sequence[tuple[list[list[int]], torch.Tensor]]) -> None:
    """
    Args:
        ranks: of each, the rows of its steps, and the parameters after them.
    """
    steps = [[*mine, *theirs] for mine, theirs in zip(*(rows for rows, _ in ranks), strict=True)]
    lacking = [
        any(number in IMAGES for number in mine) != any(number in IMAGES for number in theirs)
        for mine, theirs in zip(*(rows for rows, _ in ranks), strict=True)
    ]
    assert sorted(number for rows in steps for number in rows) == list(range(len(ROWS)))
    assert any(lacking)
    expected = trained_alone(steps)
    first = flat(list(FAMILY.model(0).parameters()))
    assert (expected - first).norm() > 1e-3 * first.norm()
    assert torch.equal(ranks[0][1], ranks[1][1])
    assert (ranks[0][1] - expected).norm() <= 1e-5 * (expected - first).norm()
