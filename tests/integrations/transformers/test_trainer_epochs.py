"""Epochs end where the data ends, though the number of their steps is not known before."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_trainer import POLICY, documents, losses, make_trainer
from transformers import TrainerCallback

from evenstep.integrations import transformers as even

N = len(documents())


class Epochs(TrainerCallback):
    """Notes `state.epoch` as a user's callback sees it."""

    def __init__(self) -> None:
        self.at_steps: list[float] = []
        self.at_ends: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.at_steps.append(state.epoch)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.at_ends.append(state.epoch)


@pytest.mark.parametrize("accumulate", [3])
def test_whole_epochs(tmp_path, accumulate: int) -> None:
    epochs = Epochs()
    trainer = even.install(
        make_trainer(
            tmp_path,
            num_train_epochs=2,
            gradient_accumulation_steps=accumulate,
            extra={"callbacks": [epochs]},
        ),
        policy=POLICY,
    )
    trainer.train()
    state = trainer.state
    assert sorted(trainer.model.seen.flat()) == sorted(2 * list(range(N)))
    assert state.epoch == 2.0
    assert state.max_steps == state.global_step == len(losses(trainer))
    assert state.num_train_epochs == 2
    assert epochs.at_ends == [1.0, 2.0]
    assert epochs.at_steps == sorted(epochs.at_steps)
    assert epochs.at_steps[-1] == 2.0


def test_a_fraction_of_an_epoch(tmp_path) -> None:
    trainer = even.install(make_trainer(tmp_path, num_train_epochs=1.5), policy=POLICY)
    trainer.train()
    seen = trainer.model.seen.flat()
    assert sorted(seen[:N]) == list(range(N))
    assert len(set(seen[N:])) == len(seen[N:])
    before = len(seen) - len(
        trainer.model.seen.samples[-2]
    )  # after the last update is an empty one
    assert before < 1.5 * N <= len(seen)
    assert trainer.state.epoch == pytest.approx(len(seen) / N)
