"""Collate functions that make one thing of a group, and another of its rows joined."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import evenstep
from evenstep.errors import CollateError
from same_values import same

N = 40
POLICY = evenstep.Even(max_tokens=64)
FIRST = 100  # token of the first row, by which rows are known again


def row_of(index: int, images: int, *, width: int = 4) -> dict[str, Any]:
    text = [FIRST + index, *range(2, 4 + index % 7)]
    pictures = [torch.full((2, width * (1 + k)), float(index + k + 1)) for k in range(images)]
    return {"text": text, "images": pictures}


class Rows(Dataset):  # type: ignore[type-arg]
    """Most rows have images, of several sizes; some have none."""

    def __init__(self, images: Callable[[int], int] = lambda index: index % 3) -> None:
        self.rows = [row_of(index, images(index), width=4 + index % 2) for index in range(N)]

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]


class Text:
    """Tokens and labels, padded on the left."""

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        width = max(len(row["text"]) for row in rows)
        ids = torch.tensor([[0] * (width - len(row["text"])) + row["text"] for row in rows])
        batch: dict[str, Any] = {"input_ids": ids, "attention_mask": (ids > 0).long()}
        batch["labels"] = ids.masked_fill((ids == 0) | (ids >= FIRST), -100)
        pictures = [picture for row in rows for picture in row["images"]]
        self.add(batch, rows, pictures)
        return batch

    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        """Adds what is made of the images."""


class SideBySide(Text):
    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        if pictures:
            batch["pixel_values"] = torch.cat(pictures, -1)[None]
            batch["target_sizes"] = torch.tensor([picture.shape for picture in pictures])


class Listed(Text):
    """A list of tensors for each row, as MiniCPM-V has them."""

    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        batch["pixel_values"] = [list(row["images"]) for row in rows]
        batch["image_bound"] = [
            torch.tensor([[k, k + 1] for k in range(len(row["images"]))]) for row in rows
        ]


class Crossed(Text):
    """A row of as many images as the group has at most, and a mask over tokens and images."""

    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        most = max(len(row["images"]) for row in rows)
        pixels = torch.zeros(len(rows), most, 2, 2)
        mask = torch.zeros(*batch["input_ids"].shape, most)
        for place, row in enumerate(rows):
            for k, picture in enumerate(row["images"]):
                pixels[place, k], mask[place, :, k] = picture[:, :2], 1
        if most:
            batch |= {"pixel_values": pixels, "image_mask": mask}


class Counted(Text):
    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        batch["rows"] = torch.tensor(len(rows))
        batch["images"] = len(pictures)


def check_epoch(loader: evenstep.DataLoader, collate: Text, rows: list[Any]) -> None:
    """Every row once, in batches that are the function's own."""
    numbers = []
    for batch, step in loader.steps():
        real = [ids[ids > 0] for ids in batch["input_ids"]]
        own = [int(ids[0]) - FIRST for ids in real]
        theirs = collate([rows[number] for number in own])
        assert same(dict(batch), theirs)
        assert step.tokens == sum(map(len, real))
        assert step.supervised_tokens == int((theirs["labels"] != -100).sum())
        numbers += own
    assert sorted(numbers) == list(range(len(rows)))


@pytest.mark.parametrize("kind", [SideBySide, Listed, Crossed, Counted])
def test_groups_are_the_functions_own(kind, caplog) -> None:
    data, collate, workers = Rows(), kind(), int(kind is Listed)
    with caplog.at_level(logging.WARNING, "evenstep"):
        loader = evenstep.DataLoader(data, policy=POLICY, collate_fn=collate, num_workers=workers)
        loader.learn()
    if not workers:  # which say it themselves
        (said,) = caplog.messages
        assert "collates every group, from its rows" in said
    check_epoch(loader, collate, data.rows)


def rare() -> list[int]:
    """Rows that are not among those which are tried before training."""
    tried = np.random.default_rng(0).choice(N, 8, replace=False)
    return sorted(set(range(N)) - set(tried.tolist()))[:6]


@pytest.mark.parametrize(
    ("kind", "usual", "seldom", "skipped"),
    [(SideBySide, 1, 2, N), (Listed, 1, 0, N), (Crossed, 1, 0, 0), (Crossed, 0, 1, N)],
)
def test_rows_of_a_kind_that_was_not_tried_are_no_samples_to_skip(
    kind, usual: int, seldom: int, skipped: int
) -> None:
    numbers = rare()
    data, collate = Rows(lambda index: seldom if index in numbers else usual), kind()
    options: dict[str, Any] = {"policy": POLICY}
    options["faults"] = evenstep.Faults(skip_bad_samples=skipped)
    loader = evenstep.DataLoader(data, collate_fn=collate, **options)
    loader.learn()
    assert loader.learned is not None
    assert loader.learned.collate is not None
    if loader.learned.collate["again"]:
        check_epoch(loader, collate, data.rows)
        return
    with pytest.raises(evenstep.EvenstepError, match=r"use PreparingCollator\(.*again=True"):
        list(loader)
    again = evenstep.PreparingCollator(collate_fn=collate, again=True)
    check_epoch(evenstep.DataLoader(data, collate_fn=again, **options), collate, data.rows)


class Shortest(Text):
    """Masks the labels that not all rows have."""

    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        shortest = min(len(row["text"]) for row in rows)
        batch["labels"][:, : 1 - shortest] = -100


class Marked(Text):
    """Writes the number of rows into the labels."""

    def add(self, batch: dict[str, Any], rows: list[Any], pictures: list[torch.Tensor]) -> None:
        batch["labels"][batch["labels"] != -100] = len(rows)


@pytest.mark.parametrize(("kind", "loss_scaling"), [(Shortest, "sample"), (Marked, "token")])
def test_labels_that_depend_on_the_group_are_refused_and_the_remedy_works(
    kind, loss_scaling: str
) -> None:
    data, collate = Rows(), kind()
    with pytest.raises(CollateError, match=r"another 'labels'.*again=True.*'sample'"):
        evenstep.DataLoader(data, policy=POLICY, collate_fn=collate).learn()
    again = evenstep.PreparingCollator(collate_fn=collate, again=True)
    loader = evenstep.DataLoader(data, policy=POLICY, collate_fn=again, loss_scaling=loss_scaling)
    numbers = []
    for batch, _ in loader.steps():
        own = [int(ids[ids > 0][0]) - FIRST for ids in batch["input_ids"]]
        assert same(dict(batch), collate([data.rows[n] for n in own]))
        numbers += own
    assert sorted(numbers) == list(range(N))
