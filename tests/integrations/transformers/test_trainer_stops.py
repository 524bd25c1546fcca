"""Training that stops early, and that resumes with updates of another size, or from the weights
alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from launched_rank import as_rank
from ranks import Rank, run
from tiny_trainer import (
    POLICY,
    check_gradients,
    documents,
    gathered,
    make_trainer,
    together,
)
from transformers import EarlyStoppingCallback, TrainerCallback

from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
N = len(documents())
STOP = 3  # updates before the checkpoint


class StopAndSave(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == STOP:
            control.should_training_stop = control.should_save = True


def stop_early(rank: Rank, folder: Path) -> None:
    """A metric that never improves, as the learning rate is 0, ends training at the second look;
    and what is left is trained on after a resume."""
    as_rank(rank)
    options = {
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "load_best_model_at_end": True,
        "remove_unused_columns": False,
    }
    extra = {"eval_dataset": [documents()[index] for index in range(4)]}
    stopped = make_trainer(folder, extra=extra, **options)
    stopped.add_callback(EarlyStoppingCallback(early_stopping_patience=1))
    even.install(stopped, policy=POLICY).train()
    assert stopped.state.global_step == 4
    assert 0 < stopped.state.epoch < 1
    rest = even.install(make_trainer(folder, extra=extra, **options), policy=POLICY)
    rest.train(resume_from_checkpoint=True)
    assert rest.state.epoch == 1.0
    every = [together(gathered(each.model.seen)) for each in (stopped, rest)]
    assert sorted(i for updates in every for u in updates for i in u) == list(range(N))


def test_early_stopping(tmp_path: Path) -> None:
    run(stop_early, 2, tmp_path / "run", folder=tmp_path, within=150)


CASES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3}),
    ({"gradient_accumulation_steps": 3}, {}),
    ({"update_tokens": 256}, {"update_tokens": 600}),
    ({"update_tokens": 256}, {"gradient_accumulation_steps": 2}),
    ({"save_only_model": True}, {}),
]
"""Options before and after the resume."""


def change(rank: Rank, folder: Path) -> None:
    as_rank(rank)
    for number, case in enumerate(CASES):
        trainers = []
        for options in case:
            given = dict(options)
            sized = {name: given.pop(name) for name in ("update_tokens",) if name in given}
            if sized:
                given["gradient_accumulation_steps"] = 1
            trainer = make_trainer(
                folder / str(number), num_train_epochs=2, save_strategy="epoch", **given
            )
            if not trainers:
                trainer.add_callback(StopAndSave())
            even.install(trainer, policy=POLICY, **sized)
            trainer.train(resume_from_checkpoint=bool(trainers))
            trainers.append(trainer)
        before, after = (
            [update for update in together(gathered(each.model.seen)) if update]
            for each in trainers
        )
        assert len(before) == STOP
        assert trainers[1].state.epoch == 2.0
        assert trainers[1].state.global_step == STOP + len(after)
        assert sorted(i for u in before + after for i in u) == sorted(2 * list(range(N)))
        trainers[1].state.log_history = trainers[1].state.log_history[STOP:]
        check_gradients(trainers[1], trainers[1].model, after)


def test_another_update_after_a_resume(tmp_path: Path) -> None:
    run(change, 2, tmp_path / "run", folder=tmp_path, within=170)
