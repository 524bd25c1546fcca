"""Epochs, steps, schedules, logs, evaluation and checkpoints mean what they mean in Trainer, though
the number of steps of an epoch is not known before it has ended."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from tiny_trainer import POLICY, documents, losses, make_trainer
from transformers import TrainerCallback

import evenstep
from evenstep.integrations import transformers as even

N = len(documents())


def trained(folder: Path, **options: Any) -> Any:
    trainer = even.install(make_trainer(folder, **options), policy=POLICY)
    trainer.train()
    return trainer


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("checkpoint-*"))


def evaluations(trainer: Any) -> list[int]:
    return [entry["step"] for entry in trainer.state.log_history if "eval_loss" in entry]


class Epochs(TrainerCallback):
    """Notes `state.epoch` as a user's callback sees it."""

    def __init__(self) -> None:
        self.at_steps: list[float] = []
        self.at_ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.at_steps.append(state.epoch)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.at_ends.append(state.epoch)


def test_whole_epochs(tmp_path) -> None:
    epochs = Epochs()
    trainer = trained(
        tmp_path,
        num_train_epochs=2,
        gradient_accumulation_steps=3,
        extra={"callbacks": [epochs]},
    )
    state = trainer.state
    assert sorted(trainer.model.seen.flat()) == sorted(2 * list(range(N)))
    assert state.epoch == 2.0
    assert state.max_steps == state.global_step == len(losses(trainer))
    assert state.num_train_epochs == 2
    assert epochs.at_ends == [1.0, 2.0]
    assert epochs.at_steps == sorted(epochs.at_steps)
    assert epochs.at_steps[-1] == 2.0


def test_a_fraction_of_an_epoch(tmp_path) -> None:
    trainer = trained(tmp_path, num_train_epochs=1.5)
    seen = trainer.model.seen.flat()
    assert sorted(seen[:N]) == list(range(N))
    assert len(set(seen[N:])) == len(seen[N:])
    *_, last, after = trainer.model.seen.samples
    assert not after
    before = len(seen) - len(last)
    assert before < 1.5 * N <= len(seen)
    assert trainer.state.epoch == pytest.approx(len(seen) / N)


@pytest.mark.integrations
def test_samples_that_are_skipped_do_not_keep_training_from_ending(tmp_path) -> None:
    """The last update is not known to be one; the last checkpoint is saved all the same."""
    too_long = [i for i, length in enumerate(documents().lengths) if length > 40]
    assert too_long
    trainer = even.install(
        make_trainer(tmp_path, num_train_epochs=2, save_strategy="steps", save_steps=1000),
        policy=evenstep.Even(max_tokens=40),
        faults=evenstep.Faults(skip_bad_samples=len(too_long)),
    )
    trainer.train()
    assert sorted(trainer.model.seen.flat()) == sorted(2 * sorted({*range(N)} - {*too_long}))
    assert trainer.state.epoch == 2.0
    assert checkpoints(tmp_path) == [trainer.state.global_step]


@pytest.mark.integrations
def test_saving_and_evaluating_by_steps(tmp_path) -> None:
    trainer = trained(
        tmp_path,
        num_train_epochs=2,
        save_strategy="steps",
        eval_strategy="steps",
        save_steps=4,
        eval_steps=4,
        learning_rate=1e-2,
        logging_steps=5,
        load_best_model_at_end=True,
        extra={"eval_dataset": documents(10)},
    )
    last = trainer.state.global_step
    assert checkpoints(tmp_path) == sorted({*range(4, last, 4), last})
    assert set(range(4, last, 4)) <= set(evaluations(trainer))
    assert Path(trainer.state.best_model_checkpoint).exists()
    logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert logged == list(range(5, last + 1, 5))


@pytest.mark.integrations
def test_what_is_logged_beside_the_loss(tmp_path) -> None:
    trainer = trained(tmp_path, max_grad_norm=1.0)
    logged = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged[-1]["tokens"] == int(documents().lengths.sum())
    assert all(0.0 <= entry["padding"] < 1.0 for entry in logged)
    assert all(entry["imbalance"] == 1.0 for entry in logged)  # one process
    assert all(entry["composition"] > 0 for entry in logged)
    assert all(math.isfinite(entry["loss"]) for entry in logged)
    end = trainer.state.log_history[-1]
    assert end["train_samples_per_second"] == pytest.approx(N / end["train_runtime"], rel=0.01)
