"""A vision-language job that is killed in mid-epoch resumes by Trainer's own command."""

from __future__ import annotations

import shutil
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Job, Rank, run
from tiny_trainer import WITHIN, Stop, gathered, together
from vision_trainer import make_trainer

import evenstep
from evenstep.integrations import transformers as even
from families import FAMILIES

pytestmark = pytest.mark.integrations
COUNT = 41
SAVED = 2  # updates between checkpoints
LOST = ("Qwen2.5-VL", "LLaVA-NeXT")
"""Trainer alone does not restore their weights: it saves them under other names than it loads."""


def train(rank: Rank, folder: Path, name: str, stop: int | None, resume: bool) -> dict[str, Any]:
    as_rank(rank)
    trainer, seen = make_trainer(
        folder,
        FAMILIES[name],
        COUNT,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=SAVED,
        learning_rate=1e-2,
    )
    if stop is not None:
        trainer.add_callback(Stop(rank, stop))
    even.install(trainer, policy=evenstep.Even(max_tokens=512))
    trainer.train(resume_from_checkpoint=resume or None)
    return {
        "updates": [update for update in together(gathered(seen)) if update],
        "parameters": torch.cat([p.detach().flatten() for p in trainer.model.parameters()]),
        "epoch": trainer.state.epoch,
    }


def ended(job: Path, world_size: int, folder: Path, name: str, *, resume: bool) -> Any:
    job.mkdir()
    return run(train, world_size, folder, name, None, resume, folder=job, within=WITHIN)[0]


@pytest.mark.parametrize("name", ["Qwen2.5-VL", "LLaVA-NeXT", "Idefics3"])
def test_killed_in_mid_epoch(tmp_path: Path, name: str) -> None:
    whole = ended(tmp_path / "whole_job", 2, tmp_path / "whole", name, resume=False)
    folder, job = tmp_path / "killed", tmp_path / "killed_job"
    job.mkdir()
    with Job(train, 2, folder, name, SAVED + 1, False, folder=job) as killed:
        for rank in (0, 1):
            killed.heard(rank, "there", within=WITHIN)
        for rank in (0, 1):
            killed.signal(rank, SIGKILL, children=True)
        killed.join(30)
    shutil.copytree(folder, tmp_path / "other")

    again = ended(tmp_path / "again_job", 2, folder, name, resume=True)
    assert again["updates"] == whole["updates"][SAVED:]
    if name not in LOST:
        torch.testing.assert_close(again["parameters"], whole["parameters"], rtol=0, atol=0)

    other = ended(tmp_path / "other_job", 1, tmp_path / "other", name, resume=True)
    before = [number for update in whole["updates"][:SAVED] for number in update]
    rest = [number for update in other["updates"] for number in update]
    assert sorted(before + rest) == sorted(2 * list(range(COUNT)))
    assert set(rest[: COUNT - len(before)]) == set(range(COUNT)) - set(before)
    assert other["epoch"] == 2.0
