"""Trainer on two ranks, in steps in which one of them has no image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("PIL")

from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import arguments
from transformers import Trainer

import evenstep
from blank_job import FAMILY, RATE, ROWS, Prepared, check, flat
from evenstep.integrations import transformers as even


def row_of(tokens: torch.Tensor, labels: torch.Tensor) -> tuple[int, ...]:
    """What a row is known by: its tokens up to the last that counts, behind which a blank lies."""
    last = int((labels != -100).nonzero()[-1])
    return tuple(tokens[: last + 1].tolist())


def train(rank: Rank, folder: Path, form: str) -> tuple[list[list[int]], torch.Tensor]:
    as_rank(rank)
    seen: list[list[int]] = []
    prepared = [Prepared()[number] for number in range(len(ROWS))]
    known = {row_of(s["input_ids"], s["labels"]): number for number, s in enumerate(prepared)}

    class Telling(Trainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            assert "pixel_values" in inputs
            rows = list(zip(inputs["input_ids"], inputs["labels"], strict=True))
            seen.append([known[row_of(*row)] for row in rows if (row[1] != -100).any()])
            return super().compute_loss(model, inputs, *args, **kwargs)

    trainer = Telling(
        model=FAMILY.model(0),
        args=arguments(
            folder,
            learning_rate=RATE,
            lr_scheduler_type="constant",
            remove_unused_columns=False,
            ddp_find_unused_parameters=False,
        ),
        train_dataset=Prepared() if form == "tokens" else ROWS,
        data_collator=evenstep.PadCollator() if form == "tokens" else FAMILY.collate,
        processing_class=FAMILY.processor(),
    )
    policy = evenstep.Even(max_tokens=256)
    even.install(trainer, policy=policy, memory=evenstep.Memory(buffer_size=8)).train()
    return seen, flat(list(trainer.model.parameters()))


@pytest.mark.parametrize("form", ["rows", "tokens"])
def test_every_rank_has_an_image_in_every_step(tmp_path: Path, form: str) -> None:
    check(run(train, 2, tmp_path, form, folder=tmp_path, within=90))
