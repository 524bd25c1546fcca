"""Loops of one's own with Lightning's Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("lightning.fabric")

from lightning.fabric import Fabric
from lightning_job import trainer_environment
from ranks import Rank, run
from tiny_model import TinyModel
from update_checks import Update, check_epoch, check_resumed, gradient_of, loader_of

import evenstep
from evenstep.integrations import lightning as even

pytestmark = [pytest.mark.integrations, pytest.mark.timeout(120)]


def train(
    rank: Rank | None,
    path: Path | None = None,
    *,
    save_after: int | None = None,
    scaled: bool = True,
    early: bool = False,
) -> list[Update]:
    options: Any = {"devices": 1}
    if rank is not None and rank.world_size > 1:
        trainer_environment(rank)
        options = {"strategy": "ddp", "devices": rank.world_size}
    fabric = Fabric(accelerator="cpu", **options)
    fabric.launch()
    model: Any = TinyModel()
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = fabric.setup(model, optimizer)
    loader = even.setup(fabric, loader_of(3))
    state = {"model": model, "optimizer": optimizer, "loader": loader}
    if path is not None and save_after is None:
        fabric.load(path, state)
    updates = [Update()]
    for batch in loader:
        step = loader.step
        updates[-1].samples += step.indices
        updates[-1].steps += 1
        with fabric.no_backward_sync(model, enabled=not step.ends_update):
            loss = model(**batch).loss
            fabric.backward(loss) if scaled else loss.backward()
        if step.ends_update or early:
            updates[-1].gradient = gradient_of(model)
            updates.append(Update())
            optimizer.step()
            optimizer.zero_grad()
            if len(updates) - 1 == save_after:
                fabric.save(path, state)
    return updates[:-1]


def saving(rank: Rank, path: Path) -> list[Update]:
    return train(rank, path, save_after=2)


def test_two_ranks_train_as_one_and_resume_on_any_number(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "two", "one")]
    for folder in folders:
        folder.mkdir()
    path = tmp_path / "checkpoint"
    ranks = run(saving, 2, path, folder=folders[0], within=90)
    check_epoch(ranks, 3, waits_at_updates=True)
    two = run(train, 2, path, folder=folders[1], within=90)
    (one,) = run(train, 1, path, folder=folders[2], within=90)
    check_resumed(ranks, two, one, after=2)


def test_a_loop_that_trains_wrongly_is_stopped() -> None:
    with pytest.raises(evenstep.ConfigurationError, match="loss of step 0 was not scaled"):
        train(None, scaled=False)
    with pytest.raises(evenstep.ConfigurationError, match=r"loader\.step\.ends_update"):
        train(None, early=True)
