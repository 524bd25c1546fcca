"""What a script calls in place of ``trainer.fit`` and ``trainer.estimated_stepping_batches``."""

from __future__ import annotations

import math
from typing import Any

from evenstep.errors import ConfigurationError
from evenstep.integrations.job_facts import take_cost, waits_at_updates
from evenstep.integrations.lightning.installed import LightningModule, Trainer
from evenstep.integrations.lightning.step_callback import StepCallback
from evenstep.integrations.lightning.trainer_loader import LightningLoader, loader
from evenstep.integrations.step_estimate import estimate_steps
from evenstep.loader.dataloader import DataLoader


def fit(
    trainer: Trainer,
    model: LightningModule,
    train_dataloaders: Any = None,
    *arguments: Any,
    **options: Any,
) -> None:
    """``trainer.fit`` with an `evenstep.DataLoader`, and with a `StepCallback` where the Trainer
    has none. Loaders that a module or a data module makes are made by `loader`.

    The loader's `Even` takes the cost of the module's model, if one of its children has a
    ``config``: see `evenstep.DataLoader.take_cost`. Where Trainer accumulates gradients under DDP
    or ZeRO-1, a packed one gets ``sync="update"``.
    """
    if not any(isinstance(one, StepCallback) for one in trainer.callbacks):
        trainer.callbacks.insert(0, StepCallback())
    if isinstance(train_dataloaders, DataLoader):
        train_dataloaders = loader(train_dataloaders)
    if isinstance(train_dataloaders, LightningLoader):
        inner = train_dataloaders.loader
        take_cost(inner, model.children())
        several = trainer.accumulate_grad_batches > 1 or inner.update_tokens is not None
        if several and model.automatic_optimization and waits_at_updates(trainer.strategy, [model]):
            inner.take_sync()
    trainer.fit(model, train_dataloaders, *arguments, **options)


def estimated_stepping_batches(trainer: Trainer, loader: DataLoader | LightningLoader) -> int:
    """What ``trainer.estimated_stepping_batches`` cannot know for a loader without a length: for
    ``configure_optimizers``. The same on all ranks, which all call it.

    Raises:
        ConfigurationError: neither the number of samples nor ``max_steps`` is known.
    """
    inner = loader.loader if isinstance(loader, LightningLoader) else loader
    limit = trainer.max_steps if trainer.max_steps >= 0 else math.inf
    estimate = estimate_steps(inner)
    if estimate is not None and trainer.max_epochs is not None and trainer.max_epochs >= 0:
        steps = estimate.steps
        if isinstance(trainer.limit_train_batches, int):
            steps = min(steps, trainer.limit_train_batches)
        fixed = inner.update_tokens is None
        accumulate = trainer.accumulate_grad_batches if fixed else inner.accumulate
        updates = math.ceil(steps / accumulate)
        limit = min(limit, updates * trainer.max_epochs)
    if limit == math.inf:
        raise ConfigurationError(
            "how often the optimizer will step is unknown, as the number of samples or epochs is; "
            "give Trainer(max_steps=)"
        )
    return int(limit)
