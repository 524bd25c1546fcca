"""Trainer with a collate function that makes tokens and pixels of raw rows."""

from __future__ import annotations

from typing import Any

import pytest
from launched_rank import as_rank
from ranks import Rank, run
from vision_trainer import check_updates, make_trainer

import evenstep
from evenstep.integrations import transformers as even
from families import FAMILIES

COUNT = 23
NAMES = ["Qwen2.5-VL", "Idefics3", "LLaVA-NeXT", "Gemma 3"]


def train(
    rank: Rank | None, folder: Any, names: list[str], accumulate: int, *, packed: bool = False
) -> None:
    if rank is not None:
        as_rank(rank)
    for name in names:
        trainer, seen = make_trainer(
            folder, FAMILIES[name], COUNT, gradient_accumulation_steps=accumulate
        )
        even.install(trainer, policy=evenstep.Even(max_tokens=512, packed=packed))
        trainer.train()
        check_updates(trainer, seen, FAMILIES[name].collate, trainer.train_dataset.rows)


@pytest.mark.parametrize("name", NAMES[2:])
def test_every_row_once_and_the_gradient_of_one_batch(name: str, tmp_path: Any) -> None:
    train(None, tmp_path, [name], 2)


@pytest.mark.parametrize(
    ("accumulate", "names"),
    [(3, NAMES[:2]), pytest.param(1, NAMES, marks=pytest.mark.integrations)],
    ids=["3", "1"],
)
def test_two_ranks(tmp_path: Any, accumulate: int, names: list[str]) -> None:
    run(train, 2, tmp_path, names, accumulate, folder=tmp_path, within=150)


@pytest.mark.parametrize("name", ["Qwen3-VL", "LLaVA-NeXT"])
def test_packed_groups(name: str, tmp_path: Any) -> None:
    train(None, tmp_path, [name], 2, packed=True)
