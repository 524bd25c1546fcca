"""Trainer with a collate function that makes tokens and pixels of raw rows, and where one of two
ranks has no image."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("PIL")

from launched_rank import as_rank
from ranks import Rank, run
from vision_rows import Rows
from vision_trainer import check_updates, make_trainer

import evenstep
from blank_job import FAMILY, RATE, ROWS, Prepared, check, flat
from evenstep.integrations import transformers as even
from families import FAMILIES

COUNT = 23
NAMES = ["Qwen2.5-VL", "Idefics3", "LLaVA-NeXT", "Gemma 3"]
MORE = ["Mistral 3", "GLM-4V", "PaliGemma"]


def train(
    rank: Rank | None, folder: Any, names: list[str], accumulate: int, *, packed: bool = False
) -> None:
    if rank is not None:
        as_rank(rank)
    for name in names:
        family = FAMILIES[name]
        rows = Rows(family, COUNT)
        trainer, seen = make_trainer(folder, family, rows, gradient_accumulation_steps=accumulate)
        even.install(trainer, policy=evenstep.Even(max_tokens=512, packed=packed)).train()
        check_updates(trainer, seen, family.collate, rows.rows)


@pytest.mark.parametrize(
    ("accumulate", "names"),
    [
        (3, NAMES[:2]),  # the others' batches are held by tests/batch, which needs no Trainer
        pytest.param(3, NAMES[2:], marks=pytest.mark.integrations),
        pytest.param(1, NAMES, marks=pytest.mark.integrations),
        pytest.param(2, MORE, marks=pytest.mark.integrations),
    ],
    ids=["3", "3, more", "1", "others"],
)
def test_every_row_once_and_the_gradient_of_one_batch(
    tmp_path: Any, accumulate: int, names: list[str]
) -> None:
    run(train, 2, tmp_path, names, accumulate, folder=tmp_path, within=150)


def test_packed_groups(tmp_path: Any) -> None:
    train(None, tmp_path, ["Qwen3-VL", "LLaVA-NeXT"], 2, packed=True)


def train_blank(rank: Rank, folder: Any, form: str) -> tuple[list[list[int]], torch.Tensor]:
    as_rank(rank)
    tokens = form == "tokens"
    trainer, seen = make_trainer(
        folder,
        FAMILY,
        Prepared() if tokens else ROWS,
        extra={
            "data_collator": evenstep.PadCollator() if tokens else FAMILY.collate,
            "processing_class": FAMILY.processor(),
        },
        learning_rate=RATE,
        lr_scheduler_type="constant",
        ddp_find_unused_parameters=False,
    )
    policy = evenstep.Even(max_tokens=256)
    even.install(trainer, policy=policy, memory=evenstep.Memory(buffer_size=8)).train()
    return seen.samples[:-1], flat(list(trainer.model.parameters()))


def both_forms(rank: Rank, folder: Any) -> list[tuple[list[list[int]], torch.Tensor]]:
    return [train_blank(rank, folder, form) for form in ("rows", "tokens")]


def test_every_rank_has_an_image_in_every_step(tmp_path: Any) -> None:
    for same in zip(*run(both_forms, 2, tmp_path, folder=tmp_path, within=90), strict=True):
        check(same)
