"""`StepCallback`: scales losses, logs, and refuses what would train wrongly.

`fit` is what a script calls in place of ``trainer.fit``, and `estimated_stepping_batches` in place
of ``trainer.estimated_stepping_batches``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import torch

from evenstep.batch.step_info import STEP_KEY, StepInfo
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.integrations.job_facts import (
    MeanLoss,
    StepValues,
    estimate_steps,
    take_cost,
    waits_at_updates,
)
from evenstep.integrations.lightning.trainer_loader import CarriedStep, LightningLoader
from evenstep.integrations.lightning.trainer_loader import loader as lightning_loader
from evenstep.integrations.rank_values import check_ranks
from evenstep.integrations.releases import check_hooks, importing
from evenstep.loader.dataloader import DataLoader
from evenstep.tools.doctor.software import warn_of_plans

with importing("lightning", "lightning"):
    from lightning.fabric import Fabric as Fabric
    from lightning.pytorch import Callback as Callback
    from lightning.pytorch import LightningModule as LightningModule
    from lightning.pytorch import Trainer as Trainer

check_hooks("lightning", Callback, "on_before_backward", "on_before_optimizer_step")
check_hooks("lightning", Fabric, "to_device")


_KEY = "evenstep"  # in a checkpoint


class StepCallback(Callback):
    """Scales the gradient of every loss, so that ``training_step`` returns the mean over the
    supervised tokens of its batch and nothing else; logs the mean over those of all ranks, padding,
    imbalance, composition and tokens to the Trainer's loggers; and stops training where it would
    not be that of one large batch."""

    def __init__(self) -> None:
        self.step: StepInfo | None = None
        """Of the batch that is trained on or evaluated, for statistics, which should leave out a
        filler. Its loss scale is applied already."""
        self._scaled = False
        self._optimizer_steps = 0  # before it
        self._values = StepValues()
        self._loss: Any = 0.0  # of this rank, summed over updates since the last log
        self._updates = 0
        self._evaluated: dict[int, MeanLoss] = {}  # by the loader's number
        self._resumes = False
        self._state: dict[str, Any] | None = None  # of the checkpoint to resume from

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        for loader in _loaders(trainer.train_dataloader):
            checkpoint[_KEY] = loader.state()

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        self._resumes = True
        self._state = checkpoint.get(_KEY)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for loader in _loaders(trainer.train_dataloader):
            warn_of_plans(trainer.strategy.root_device, trainer.global_rank)
            averaging = (trainer.distributed_sampler_kwargs or {}).get("num_replicas", 1)
            check_ranks("Lightning", averaging, loader.loader.world_size)
            if self._resumes and self._state is None:
                raise MismatchError(
                    f"the checkpoint {trainer.ckpt_path} was saved without evenstep; begin a new "
                    "run from its model, with load_from_checkpoint"
                )
            if self._resumes and self._state is not None:
                loader.resume(self._state)
            if loader.loader.update_tokens is not None:
                loader.loader.learn()
                trainer.accumulate_grad_batches = loader.loader.accumulate
        self._resumes = False

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        steps = list(_taken(batch))
        if len(steps) > 1:
            raise ConfigurationError(
                f"{len(steps)} evenstep loaders feed one training_step, which returns one loss; "
                "take all but one of them from torch's DataLoader"
            )
        self.step = step = steps[0] if steps else None
        self._scaled = False
        self._optimizer_steps = trainer.global_step
        if step is None or not pl_module.automatic_optimization:
            return
        if step.accumulate != trainer.accumulate_grad_batches:
            raise ConfigurationError(
                f"an update has {step.accumulate} steps in evenstep.DataLoader(accumulate=), and "
                f"{trainer.accumulate_grad_batches} in Trainer(accumulate_grad_batches=); "
                "give both the same"
            )
        # After a checkpoint of the last step of an epoch, which may be in the middle of an update,
        # Trainer counts on from there, and steps the optimizer where its number is a multiple.
        counted = trainer.fit_loop.epoch_loop.batch_progress.current
        counted.ready -= (counted.ready - 1 - step.micro_step) % step.accumulate

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: torch.Tensor
    ) -> None:
        if self.step is None:
            return
        self._scaled = True
        # Trainer has divided the loss by the steps of an update, if it steps the optimizer.
        scale = self.step.loss_scale
        if pl_module.automatic_optimization:
            scale *= trainer.accumulate_grad_batches
        loss.register_hook(lambda gradient: gradient * scale)  # type: ignore[no-untyped-call]

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        step = self.step
        if step is None or not pl_module.automatic_optimization or trainer.fast_dev_run:
            return
        if not step.ends_update:
            raise ConfigurationError(
                f"the optimizer is about to step after step {step.step}, in the middle of an "
                f"update of {step.accumulate}; choose limit_train_batches as a multiple, and "
                "checkpoints at the end of updates"
            )

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        step = self.step
        if step is None:
            return
        stepped = trainer.global_step > self._optimizer_steps
        if stepped and not self._scaled and not pl_module.automatic_optimization:
            raise ConfigurationError(
                f"the optimizer has stepped, and the loss of step {step.step} was not scaled; call "
                "self.manual_backward(loss) in place of loss.backward()"
            )
        if step.ends_update and not stepped and pl_module.automatic_optimization:
            raise ConfigurationError(
                f"the strategy has not stepped the optimizer after step {step.step}, where an "
                "update ends; its updates go on in the next epoch: choose accumulate_grad_batches=1"
            )
        self._values.add(step)
        if isinstance(outputs, Mapping) and step.loss_scale and pl_module.automatic_optimization:
            self._loss += outputs["loss"] * (trainer.accumulate_grad_batches * step.loss_scale)
        if step.ends_update:
            self._updates += 1
            if self._updates == trainer.log_every_n_steps:
                self._log(trainer)

    def _log(self, trainer: Trainer) -> None:
        loss = torch.as_tensor(self._loss / self._updates, device=trainer.strategy.root_device)
        values = {"loss": float(trainer.strategy.reduce(loss, reduce_op="mean"))}
        values |= self._values.take()
        self._loss = 0.0
        self._updates = 0
        for logger in trainer.loggers:
            logger.log_metrics(
                {f"evenstep/{name}": value for name, value in values.items()},
                step=trainer.global_step,
            )

    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, *number: int
    ) -> None:
        self.step = next(_taken(batch), None)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        step = self.step
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if step is None or not isinstance(loss, torch.Tensor):
            return
        weight = 0 if step.filler else step.supervised_tokens
        self._evaluated.setdefault(dataloader_idx, MeanLoss()).add(loss, weight)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stage = "test" if trainer.testing else "val"
        for number, losses in self._evaluated.items():
            name = f"evenstep/{stage}_loss" + (f"/dataloader_idx_{number}" if number else "")
            pl_module.log(name, losses.of_all_ranks(), sync_dist=True)
        self._evaluated.clear()

    on_test_batch_start = on_validation_batch_start
    on_test_batch_end = on_validation_batch_end
    on_test_epoch_end = on_validation_epoch_end

    def on_predict_batch_start(self, *arguments: Any, **options: Any) -> None:
        if list(_taken(arguments)):
            raise ConfigurationError(
                "an evenstep loader was given for prediction, whose fillers would be predicted; "
                "give torch's DataLoader, which Trainer shards itself"
            )


def _parts(whole: Any) -> Iterator[Any]:
    """What Trainer has combined, in any way, and the combinations themselves."""
    yield whole
    if isinstance(whole, (Mapping, list, tuple)):
        for part in [*(whole.values() if isinstance(whole, Mapping) else whole)]:
            yield from _parts(part)


def _loaders(loaders: Any) -> Iterator[LightningLoader]:
    """Evenstep's among the loaders of a Trainer."""
    return (part for part in _parts(loaders) if isinstance(part, LightningLoader))


def _taken(batch: Any) -> Iterator[StepInfo]:
    """Takes the step out of a batch, or of each batch in one that Trainer has combined."""
    for part in _parts(batch):
        if isinstance(part, MutableMapping) and isinstance(part.get(STEP_KEY), CarriedStep):
            carried = part.pop(STEP_KEY)
            carried.taken = True
            yield carried.step


def fit(
    trainer: Trainer,
    model: LightningModule,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    *arguments: Any,
    **options: Any,
) -> None:
    """``trainer.fit`` with an `evenstep.DataLoader`, and with a `StepCallback` where the Trainer
    has none. One may validate, too. Loaders that a module or a data module makes are made by
    `loader`.

    The loader's `Even` takes the cost of the module's model, if one of its children has a
    ``config``: see `evenstep.DataLoader.take_cost`. Where Trainer accumulates gradients under DDP
    or ZeRO-1, it gets ``sync="update"``.
    """
    if not any(isinstance(one, StepCallback) for one in trainer.callbacks):
        trainer.callbacks.insert(0, StepCallback())
    if isinstance(train_dataloaders, DataLoader):
        train_dataloaders = lightning_loader(train_dataloaders)
    if isinstance(train_dataloaders, LightningLoader):
        inner = train_dataloaders.loader
        take_cost(inner, model.children())
        several = trainer.accumulate_grad_batches > 1 or inner.update_tokens is not None
        if several and model.automatic_optimization and waits_at_updates(trainer.strategy, [model]):
            inner.take_sync()
    if isinstance(val_dataloaders, DataLoader):
        val_dataloaders = lightning_loader(val_dataloaders)
    trainer.fit(model, train_dataloaders, val_dataloaders, *arguments, **options)


def progress(trainer: Trainer) -> float:
    """The share of the samples of ``max_epochs`` that was trained on: for
    `evenstep.follow_progress`. 0 before the first step.

    Raises:
        ConfigurationError: neither the number of samples nor ``max_epochs`` is known.
    """
    for loader in _loaders(trainer.train_dataloader):
        samples, epochs = loader.loader.epoch_samples, trainer.max_epochs
        if samples is None or epochs is None or epochs < 0:
            raise ConfigurationError(
                "the share that is done is unknown, as the number of samples or epochs is; leave "
                "out follow_progress, and give Trainer(max_steps=)"
            )
        return min(1.0, loader.samples / max(epochs * samples, 1))
    return 0.0


def estimated_stepping_batches(trainer: Trainer, loader: DataLoader | LightningLoader) -> int:
    """What ``trainer.estimated_stepping_batches`` cannot know for a loader without a length: for
    ``configure_optimizers``. The same on all ranks, which all call it.

    Raises:
        ConfigurationError: neither the number of samples nor ``max_steps`` is known.
    """
    inner = loader.loader if isinstance(loader, LightningLoader) else loader
    limit = trainer.max_steps if trainer.max_steps >= 0 else math.inf
    steps = estimate_steps(inner)
    if steps is not None and trainer.max_epochs is not None and trainer.max_epochs >= 0:
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
