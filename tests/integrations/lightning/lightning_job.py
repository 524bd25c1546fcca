"""A module as people write it for Lightning, and what it trained on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from launched_rank import as_rank
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers.logger import Logger
from ranks import Rank
from tiny_model import TinyModel
from update_checks import Update, gradient_of

from evenstep.integrations import lightning as even


class Module(LightningModule):
    def __init__(self, model: torch.nn.Module | None = None, rate: float = 0.1) -> None:
        super().__init__()
        self.model = TinyModel() if model is None else model
        self.rate = rate
        self.epochs: list[list[Update]] = []

    def on_train_epoch_start(self) -> None:
        self.epochs.append([Update()])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        if not self.epochs:  # resumed in mid-epoch
            self.epochs.append([Update()])
        update = self.epochs[-1][-1]
        (callback,) = (c for c in self.trainer.callbacks if isinstance(c, even.StepCallback))
        if callback.step is not None:  # torch's loader has none
            update.samples += callback.step.indices
        update.steps += 1
        return self.model(**batch).loss

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.epochs[-1][-1].gradient = gradient_of(self.model)
        self.epochs[-1].append(Update())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class Log(Logger):
    """Keeps what is logged."""

    name = version = "log"

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, float]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.logged.append(metrics)

    def log_hyperparams(self, *arguments: Any, **options: Any) -> None:
        pass


def trainer_environment(rank: Rank) -> None:
    """That of a rank which torchrun has started."""
    as_rank(rank)
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}


def trainer_of(rank: Rank | None, folder: Path, **options: Any) -> Trainer:
    if rank is not None and rank.world_size > 1:
        trainer_environment(rank)
        options = {"strategy": "ddp", "devices": rank.world_size} | options
    else:
        options = {"devices": 1} | options
    callbacks = options.pop("callbacks", [])
    return Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=callbacks,
        **{
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": any(isinstance(one, ModelCheckpoint) for one in callbacks),
            "max_epochs": 1,
        }
        | options,
    )


def trained(module: Module) -> list[list[Update]]:
    """Updates of each epoch."""
    for epoch in module.epochs:
        assert not epoch[-1].steps, "an update was not stepped"
        epoch.pop()
    return [epoch for epoch in module.epochs if epoch]
