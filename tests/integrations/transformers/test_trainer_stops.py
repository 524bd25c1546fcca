"""Training that resumes with updates of another size, or from the weights alone."""

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
from transformers import TrainerCallback

from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
N = len(documents())
STOP = 3  # updates before the checkpoint


class StopAndSave(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if state.global_step == STOP:
            control.should_training_stop = control.should_save = True


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
