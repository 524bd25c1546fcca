"""`update_tokens` in Trainer: evenstep chooses how many batches an update has."""

from __future__ import annotations

import shutil
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Job, Rank, run
from tiny_trainer import (
    WITHIN,
    Stop,
    TellingLlama,
    documents,
    gathered,
    losses,
    make_trainer,
    of_one_batch,
    together,
)
from transformers import Trainer

import evenstep
from evenstep.errors import ConfigurationError
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
# As measured where groups of 18 tokens keep the accelerator busy.
COST = evenstep.FittedCost(per_group=2.0, per_token=1.0, per_pair=0.0)
POLICY = evenstep.Even(max_tokens=128, cost=COST)
SAVED = 2  # updates between checkpoints


def train(
    rank: Rank | None, folder: Any, asked: int | str | None, stop: int | None, resume: bool
) -> dict[str, Any]:
    if rank is not None:
        as_rank(rank)
    model = TellingLlama()
    trainer = make_trainer(folder, model=model, save_strategy="steps", save_steps=SAVED)
    even.install(trainer, policy=POLICY, **({} if asked is None else {"update_tokens": asked}))
    if rank is not None and stop is not None:
        trainer.add_callback(Stop(rank, stop))
    trainer.train(resume_from_checkpoint=resume or None)
    assert trainer.args.gradient_accumulation_steps == 1
    seen = gathered(model.seen)
    updates = [update for update in together(seen) if update]
    logged = losses(trainer)[-len(updates) :]
    for update, gradient, loss in zip(updates, model.seen.gradients, logged, strict=True):
        expected_loss, expected = of_one_batch(model, update)
        assert loss == pytest.approx(expected_loss, rel=1e-5, abs=5.1e-5)
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-5 * expected.abs().max())
    batches = [each for each in model.seen.batches if each]
    return {"updates": updates, "batches": batches, "epoch": trainer.state.epoch}


@pytest.mark.parametrize("asked", [None, 256, "auto"])
def test_updates_of_one_rank_have_several_batches(tmp_path: Any, asked: int | str | None) -> None:
    found = train(None, tmp_path, asked, None, False)
    assert sorted(i for update in found["updates"] for i in update) == list(range(61))
    assert min(found["batches"][:-1]) >= 4
    assert found["epoch"] == 1.0
    tokens = [sum(len(documents()[i]["input_ids"]) for i in each) for each in found["updates"]]
    mean = sum(tokens[:-1]) / len(tokens[:-1])
    assert mean == pytest.approx(256 if asked == 256 else 115, rel=0.3)


def ended(job: Path, world_size: int, folder: Path, *, resume: bool) -> Any:
    job.mkdir()
    return run(train, world_size, folder, 256, None, resume, folder=job, within=WITHIN)[0]


def test_two_ranks_killed_in_mid_epoch(tmp_path: Path) -> None:
    whole = ended(tmp_path / "whole_job", 2, tmp_path / "whole", resume=False)["updates"]
    assert sorted(i for update in whole for i in update) == list(range(61))
    folder, job = tmp_path / "killed", tmp_path / "killed_job"
    job.mkdir()
    with Job(train, 2, folder, 256, SAVED + 1, False, folder=job) as killed:
        for rank in (0, 1):
            killed.heard(rank, "there", within=WITHIN)
        for rank in (0, 1):
            killed.signal(rank, SIGKILL, children=True)
        killed.join(30)
    shutil.copytree(folder, tmp_path / "other")
    again = ended(tmp_path / "again_job", 2, folder, resume=True)
    assert again["updates"] == whole[SAVED:]
    other = ended(tmp_path / "other_job", 1, tmp_path / "other", resume=True)
    rest = sorted(i for update in whole[SAVED:] for i in update)
    assert sorted(i for update in other["updates"] for i in update) == rest


class Own(Trainer):
    def get_train_dataloader(self) -> evenstep.DataLoader:
        return evenstep.DataLoader(
            self.train_dataset,
            policy=POLICY,
            update_tokens=256,
            shuffle=True,
            collate_fn=self.data_collator,
        )


def test_a_loader_of_ones_own_chooses_too(tmp_path: Any) -> None:
    model = TellingLlama()
    trainer = even.install(make_trainer(tmp_path, model=model, cls=Own))
    trainer.train()
    assert sorted(model.seen.flat()) == list(range(61))
    assert min([each for each in model.seen.batches if each][:-1]) >= 4


def test_deepspeed_keeps_its_number(tmp_path: Any) -> None:
    trainer = make_trainer(tmp_path)
    trainer.is_deepspeed_enabled = True
    even.install(trainer, policy=POLICY, update_tokens=256)
    with pytest.raises(ConfigurationError, match=r"update_tokens=256.*DeepSpeed"):
        trainer.get_train_dataloader()
