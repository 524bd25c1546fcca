"""`fit`: what a script calls in place of ``trainer.fit``."""

from __future__ import annotations

from typing import Any

from evenstep.integrations.lightning.installed import LightningModule, Trainer
from evenstep.integrations.lightning.step_callback import StepCallback
from evenstep.integrations.lightning.trainer_loader import loader
from evenstep.loader.dataloader import DataLoader


def fit(
    trainer: Trainer,
    model: LightningModule,
    train_dataloaders: Any = None,
    *arguments: Any,
    **options: Any,
) -> None:
    """``trainer.fit`` with an `evenstep.DataLoader`, and with a `StepCallback` where the Trainer
    has none. Loaders that a module or a data module makes are made by `loader`."""
    if not any(isinstance(one, StepCallback) for one in trainer.callbacks):
        trainer.callbacks.insert(0, StepCallback())
    if isinstance(train_dataloaders, DataLoader):
        train_dataloaders = loader(train_dataloaders)
    trainer.fit(model, train_dataloaders, *arguments, **options)
