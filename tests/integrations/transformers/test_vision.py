"""Trainer with a collate function that makes tokens and pixels of raw rows."""

from __future__ import annotations

from typing import Any

import pytest
from families import FAMILIES
from launched_rank import as_rank
from ranks import Rank, run
from vision_trainer import check_updates, make_trainer

import evenstep
from evenstep.integrations import transformers as even

COUNT = 23
IMAGES = {name: family for name, family in FAMILIES.items() if family.pad_token_id is not None}


def train(rank: Rank | None, folder: Any, names: list[str], accumulate: int) -> None:
    if rank is not None:
        as_rank(rank)
    for name in names:
        trainer, seen = make_trainer(
            folder, IMAGES[name], COUNT, gradient_accumulation_steps=accumulate
        )
        even.install(trainer, policy=evenstep.Even(max_tokens=512))
        trainer.train()
        check_updates(trainer, seen, IMAGES[name].collate, trainer.train_dataset.rows)


@pytest.mark.parametrize("name", IMAGES)
def test_every_row_once_and_the_gradient_of_one_batch(name: str, tmp_path: Any) -> None:
    train(None, tmp_path, [name], 2)
