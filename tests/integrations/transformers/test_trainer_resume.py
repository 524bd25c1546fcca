"""A job that is killed in the middle of an epoch goes on where it was, by Trainer's own command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
import torch
from launched_rank import as_rank
from ranks import Job, Rank, run
from tiny_trainer import POLICY, WITHIN, Stop, documents, gathered, make_trainer, together

import evenstep
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
N = len(documents())
SAVED = 3  # updates between checkpoints


def train(
    rank: Rank, folder: Path, stop: int | None, resume: bool, options: dict[str, Any]
) -> dict[str, Any]:
    as_rank(rank)
    callbacks = [] if stop is None else [Stop(rank, stop)]
    trainer = even.install(
        make_trainer(
            folder,
            extra={"callbacks": callbacks},
            **{
                "num_train_epochs": 2,
                "save_strategy": "steps",
                "save_steps": SAVED,
                "learning_rate": 1e-2,
                **options,
            },
        ),
        policy=POLICY,
    )
    trainer.train(resume_from_checkpoint=resume or None)
    model = trainer.model
    return {
        "updates": [update for update in together(gathered(model.seen)) if update],
        "parameters": torch.cat([p.detach().flatten() for p in model.parameters()]),
        "epoch": trainer.state.epoch,
        "steps": trainer.state.global_step,
        "tokens": [e["tokens"] for e in trainer.state.log_history if "tokens" in e],
        "rates": [e["learning_rate"] for e in trainer.state.log_history if "loss" in e],
    }


def killed(job_folder: Path, folder: Path, stop: int, **options: Any) -> None:
    with Job(train, 2, folder, stop, False, options, folder=job_folder) as job:
        for rank in (0, 1):
            job.heard(rank, "there", within=WITHIN)
        for rank in (0, 1):
            job.signal(rank, SIGKILL, children=True)
        job.join(30)


def ended(job_folder: Path, world_size: int, folder: Path, resume: bool, **options: Any) -> Any:
    args = (folder, None, resume, options)
    return run(train, world_size, *args, folder=job_folder, within=WITHIN)[0]


def new(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


@pytest.mark.parametrize("accumulate", [1, 3])
def test_killed_in_mid_epoch(tmp_path, accumulate: int) -> None:
    options = {"gradient_accumulation_steps": accumulate}
    if accumulate == 3:
        options["num_train_epochs"] = 6
    whole = ended(new(tmp_path, "whole_job"), 2, tmp_path / "whole", False, **options)
    folder = tmp_path / "killed"
    killed(new(tmp_path, "killed_job"), folder, SAVED + 2, **options)
    assert (folder / f"checkpoint-{SAVED}" / "evenstep.json").exists()
    shutil.copytree(folder, tmp_path / "other")

    again = ended(new(tmp_path, "again_job"), 2, folder, True, **options)
    assert again["updates"] == whole["updates"][SAVED:]
    torch.testing.assert_close(again["parameters"], whole["parameters"], rtol=0, atol=0)
    for name in ("epoch", "steps", "tokens", "rates"):
        assert again[name] == whole[name], name

    other = ended(new(tmp_path, "other_job"), 1, tmp_path / "other", True, **options)
    rest = [identity for update in other["updates"] for identity in update]
    before = [identity for update in whole["updates"][:SAVED] for identity in update]
    epochs = options.get("num_train_epochs", 2)
    assert sorted(before + rest) == sorted(epochs * list(range(N)))
    this_epoch = N - len(before) % N
    assert set(rest[:this_epoch]) == set(range(N)) - set(before[len(before) - len(before) % N :])
    assert other["epoch"] == float(epochs)


def test_a_checkpoint_of_the_end_of_an_epoch(tmp_path) -> None:
    """By epochs; and where the end of training is a later one than before, or the same."""
    folder = tmp_path / "run"
    options: dict[str, Any] = {"save_strategy": "epoch"}
    first = ended(new(tmp_path, "1"), 2, folder, False, num_train_epochs=1, **options)
    assert sorted(i for update in first["updates"] for i in update) == list(range(N))
    more = ended(new(tmp_path, "2"), 2, folder, True, **options)
    assert sorted(i for update in more["updates"] for i in update) == list(range(N))
    assert more["epoch"] == 2.0
    done = ended(new(tmp_path, "3"), 2, folder, True, **options)
    assert not done["updates"]
    assert done["epoch"] == 2.0


def test_a_checkpoint_of_the_last_step_of_an_epoch(tmp_path) -> None:
    """Nothing is left of its epoch: the next begins, and Trainer sees no empty one."""
    one = even.install(make_trainer(tmp_path, num_train_epochs=2), policy=POLICY)
    one.train()
    updates = [update for update in one.model.seen.samples if update]
    last = next(n for n in range(len(updates)) if sum(map(len, updates[: n + 1])) == N) + 1

    options: dict[str, Any] = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": last}
    two = even.install(make_trainer(tmp_path, **options), policy=POLICY)
    two.train()
    three = even.install(make_trainer(tmp_path, **options), policy=POLICY)
    three.train(resume_from_checkpoint=f"{tmp_path}/checkpoint-{last}")
    assert [update for update in three.model.seen.samples if update] == updates[last:]


def test_a_torn_checkpoint_is_passed_over(tmp_path, caplog) -> None:
    options: dict[str, Any] = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    even.install(make_trainer(tmp_path, **options), policy=POLICY).train()
    (tmp_path / "checkpoint-8" / "trainer_state.json").unlink()
    again = even.install(make_trainer(tmp_path, **options), policy=POLICY)
    again.train(resume_from_checkpoint=True)
    assert "checkpoint-8 was not saved to its end" in caplog.text
    assert len([update for update in again.model.seen.samples if update]) == 4


def test_a_checkpoint_of_trainer_alone_is_refused(tmp_path) -> None:
    make_trainer(tmp_path, max_steps=2, save_strategy="steps", save_steps=2).train()
    trainer = even.install(make_trainer(tmp_path), policy=POLICY)
    with pytest.raises(evenstep.MismatchError, match="saved without evenstep"):
        trainer.train(resume_from_checkpoint=True)


def test_other_data_is_refused(tmp_path) -> None:
    options: dict[str, Any] = {"max_steps": 2, "save_strategy": "steps", "save_steps": 2}
    even.install(make_trainer(tmp_path, **options), policy=POLICY).train()
    state = json.loads((tmp_path / "checkpoint-2" / "evenstep.json").read_text())
    assert state["trainer"]["updates"] == 2
    other = even.install(
        make_trainer(tmp_path, dataset=documents(40), **{**options, "max_steps": 4}), policy=POLICY
    )
    with pytest.raises(evenstep.MismatchError, match="dataset"):
        other.train(resume_from_checkpoint=True)
