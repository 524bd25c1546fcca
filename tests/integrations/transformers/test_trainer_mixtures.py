"""Trainer trains on what a mixture draws, and resumes it in the middle of an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from launched_rank import as_rank
from ranks import Rank
from tiny_trainer import (
    POLICY,
    Stop,
    documents,
    gathered,
    kill_and_resume,
    last_checkpoint,
    make_trainer,
    together,
)

import evenstep
from evenstep.integrations import transformers as even

pytestmark = pytest.mark.integrations
CODE, EPOCH = 40, 60


def mixture() -> evenstep.Mixture:
    rows = [*map(documents().__getitem__, range(61))]
    return evenstep.Mixture(
        {"code": rows[:CODE], "chat": rows[CODE:]},
        {"code": 0.8, "chat": 0.2},
        samples_per_epoch=EPOCH,
        samples_per_step=20,
    )


def train(rank: Rank, folder: Path, stop: int | None) -> dict[str, Any]:
    as_rank(rank)
    options = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2}
    trainer = make_trainer(folder, dataset=mixture(), **options)
    if stop is not None:
        trainer.add_callback(Stop(rank, stop))
    even.install(trainer, policy=POLICY)
    trainer.train(resume_from_checkpoint=last_checkpoint(folder))
    seen = gathered(trainer.model.seen)
    return {"updates": [update for update in together(seen) if update]}


def drawn(epochs: int) -> Counter[int]:
    """What evenstep's own loader draws of the same mixture."""
    loader = evenstep.DataLoader(mixture(), policy=POLICY, shuffle=True, seed=42, group="local")
    seen = [batch["identity"].tolist() for _ in range(epochs) for batch, _ in loader.steps()]
    loader.close()
    return Counter(identity for batch in seen for identity in batch)


def test_a_killed_trainer_resumes_its_mixture_on_as_many_and_on_fewer_ranks(tmp_path: Path) -> None:
    whole, again, fewer = (each["updates"] for each in kill_and_resume(tmp_path, train, 3))
    samples = Counter(identity for update in whole for identity in update)
    assert samples == drawn(2)
    assert sum(samples[identity] for identity in range(CODE)) == 2 * 48
    before = len(whole) - len(again)
    assert before > 0
    assert again == whole[before:]
    late = Counter(identity for update in whole[before:] for identity in update)
    assert Counter(identity for update in fewer for identity in update) == late
