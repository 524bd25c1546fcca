"""`install` and `trainer_class`, which users call; and `EvenTrainer`: the methods that Trainer lets
its subclasses override."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import scaled, without_loss
from evenstep.integrations.releases import check_hooks, importing

with importing("transformers", "transformers accelerate"):
    import transformers

from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from evenstep.integrations.transformers.evaluation import EvaluationBatches, evaluation_loader
from evenstep.integrations.transformers.loader import check_arguments, make_loader, taking_over
from evenstep.integrations.transformers.model_labels import trains_preferences
from evenstep.integrations.transformers.rollouts import trains_on_rollouts
from evenstep.integrations.transformers.trainer_run import (
    ENDLESS,
    EvenCallback,
    TrainerRun,
    gathering_uneven,
    last_checkpoint,
    next_update,
)
from evenstep.plan.policy import Policy
from evenstep.tools.doctor.software import warn_of_plans


class EvenTrainer(transformers.Trainer):
    """Comes before a trainer's own class, so that `super()` is that class."""

    even: TrainerRun

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir) or True
        checkpoint = resume_from_checkpoint
        self.even.begin(checkpoint if isinstance(checkpoint, str) else None)
        warn_of_plans(self.args.device, self.args.process_index)
        steps = self.args.gradient_accumulation_steps
        uneven = gathering_uneven(self.accelerator) if trains_preferences(self) else nullcontext()
        try:
            with uneven:
                return super().train(resume_from_checkpoint, *args, **kwargs)
        finally:
            self.args.gradient_accumulation_steps = steps
            self.even.close()

    def get_train_dataloader(self) -> Any:
        with taking_over(self):
            theirs = super().get_train_dataloader()
        run = self.even
        loader = make_loader(self, theirs, run.policy, run.packed, run.options)
        loader.take_cost(self.model)
        batches = run.take(loader)
        self.args.gradient_accumulation_steps = loader.accumulate
        return batches

    def get_eval_dataloader(self, eval_dataset: Any = None, *others: Any) -> Any:
        loss_only = self.compute_metrics is None or self.args.prediction_loss_only
        make = partial(super().get_eval_dataloader, eval_dataset, *others)
        return evaluation_loader(self, make, loss_only=loss_only)

    def get_test_dataloader(self, test_dataset: Any, *others: Any) -> Any:
        make = partial(super().get_test_dataloader, test_dataset, *others)
        return evaluation_loader(self, make, loss_only=self.args.prediction_loss_only)

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(dataloader, EvaluationBatches):
            return super().evaluation_loop(dataloader, *args, **kwargs)
        outer, self.even.evaluated = self.even.evaluated, dataloader
        try:
            with dataloader.gathering(self):
                output = super().evaluation_loop(dataloader, *args, **kwargs)
            if dataloader.has_losses:
                name = f"{kwargs.get('metric_key_prefix', 'eval')}_loss"
                output.metrics[name] = dataloader.losses.of_all_ranks()
            predictions, labels = output.predictions, output.label_ids
            return output._replace(
                predictions=dataloader.ordered(predictions), label_ids=dataloader.ordered(labels)
            )
        finally:
            self.even.evaluated = outer

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        loss, *values = super().prediction_step(*args, **kwargs)
        if self.even.evaluated is None:
            return (loss, *values)
        self.even.evaluated.add(loss)
        return (None, *values)

    def set_initial_training_values(self, args: Any, dataloader: Any, *others: Any) -> Any:
        run, loader = self.even, self.even.batches.loader
        each = None if args.max_steps > 0 else run.updates_per_epoch()
        # Anything without a length stands for a loader of an unknown one.
        sized = None if each is None else _Sized(loader.dataset, each * loader.accumulate)
        values = list(super().set_initial_training_values(args, sized, *others))
        # Epochs, updates of an epoch and, the last but one, its steps; last, updates to train.
        run.epochs = values[0]
        if each is None:
            values[0] = 0 if run.updates_before >= args.max_steps else sys.maxsize
        else:
            values[0] = 0 if run.is_over(args) else values[0]
            values[-1] = run.max_steps(args, each)
        values[1], values[-2] = ENDLESS, len(run.batches)
        return tuple(values)

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        given = self.lr_scheduler is not None
        steps = num_training_steps if given else self.even.planned(self.args, num_training_steps)
        scheduler = super().create_scheduler(steps, *args, **kwargs)
        if not given:
            self.even.follow(self.args, scheduler)
        return scheduler

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: Any
    ) -> tuple[list[Any], Any]:
        run, loader = self.even, self.even.batches.loader
        update = next_update(epoch_iterator)
        if not update:
            self.control.should_epoch_stop = True
            return [], None
        batches = []
        for batch, step in update:
            run.values.add(step)
            run.samples += step.global_samples
            batches.append(without_loss(batch) if step.filler else batch)
        # Trainer runs the optimizer after so many batches, also where an epoch has fewer left.
        batches += [without_loss(batches[-1])] * (num_batches - len(batches))
        if self._counts_tokens(batches[0]):
            # The sum over this rank's tokens is divided by it, and then averaged over ranks,
            # unless Trainer multiplies it by their number.
            total = sum(step.global_supervised_tokens for _, step in update)
            parts = 1 if self.args.average_tokens_across_devices else loader.world_size
            scales = [1.0 if step.loss_scale else 0.0 for _, step in update]
            tokens = torch.tensor(max(total, 1) / parts, device=device)
        else:
            # The mean over this rank's tokens, which Trainer divides by the number of batches.
            divisor = 1 if self._is_scaled() else len(batches)
            scales = [step.loss_scale * divisor for _, step in update]
            tokens = None
        run.factors.clear()
        run.factors.extend(scales + [0.0] * (num_batches - len(update)))
        return batches, tokens

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.even.factor = self.even.factors.popleft()
        try:
            return super().training_step(*args, **kwargs)
        finally:
            self.even.factor = None

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        evaluated = self.even.evaluated
        if evaluated is not None:
            # The mean over this rank's batch, which Trainer multiplies by the number of ranks.
            times = self.args.world_size if self.args.average_tokens_across_devices else 1
            items = torch.tensor(max(evaluated.weight, 1) * times, device=self.args.device)
            by_tokens = self.compute_loss_func is not None and evaluated.by_token
            kwargs["num_items_in_batch"] = items if by_tokens else None
        result = super().compute_loss(model, inputs, *args, **kwargs)
        factor = self.even.factor
        if factor is None or factor == 1.0:
            return result
        if isinstance(result, tuple):
            return (scaled(result[0], factor), *result[1:])
        return scaled(result, factor)

    def save_model(self, output_dir: Any = None, *args: Any, **kwargs: Any) -> None:
        super().save_model(output_dir, *args, **kwargs)
        updates = self.state.global_step
        # Before the rest of the checkpoint, so that one with a trainer_state.json is whole.
        if self.is_in_train and Path(output_dir or "").name == f"{PREFIX_CHECKPOINT_DIR}-{updates}":
            self.even.save(output_dir, updates)

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs.update(self.even.values.take())
        if "train_samples_per_second" in logs:  # of batches of per_device_train_batch_size
            rate = self.even.samples / max(logs["train_runtime"], 1e-9)
            logs["train_samples_per_second"] = round(rate, 3)
        super().log(logs, *args, **kwargs)

    def _counts_tokens(self, batch: Any) -> bool:
        """Whether the loss is a sum that is divided by the tokens of the update.

        A model's own is not asked to be: many that accept `num_items_in_batch` ignore it, and
        without it all return the mean."""
        by_tokens = self.even.batches.loader.loss_scaling == "token" and "labels" in batch
        return by_tokens and self._is_scaled()

    def _is_scaled(self) -> bool:
        """Whether Trainer does not divide the loss by the number of batches."""
        is_scaled = getattr(self, "loss_is_scaled_for_ga", None)  # no older release has it
        return self.compute_loss_func is not None if is_scaled is None else bool(is_scaled)


class _Sized:
    """A loader of a known length."""

    def __init__(self, dataset: Any, steps: int) -> None:
        self.dataset = dataset
        self._steps = steps

    def __len__(self) -> int:
        return self._steps


AnyTrainer = TypeVar("AnyTrainer", bound=Any)

check_hooks("transformers", transformers.Trainer, *vars(EvenTrainer))


def install(
    trainer: AnyTrainer,
    *,
    policy: Policy | None = None,
    packed: bool | None = None,
    **options: Any,
) -> AnyTrainer:
    """Makes a trainer train on evenstep's batches, and evaluate and predict on them, too.

    Args:
        trainer: a `transformers.Trainer`, or an object of any class that inherits from it.
        policy: how batches are formed; `per_device_train_batch_size` no longer does. None where
            the trainer's own `get_train_dataloader` returns an `evenstep.DataLoader`.
        packed: whether batches are rows of several documents, without padding. By default they are
            where the policy says so, and under `Even` where the collate function makes such rows.
        **options: arguments of `evenstep.DataLoader`; they win over what the trainer's arguments
            say. With `update_tokens`, evenstep sets `gradient_accumulation_steps` while it trains.
            Without, and with 1 step of accumulation, an update has the tokens of one batch of each
            rank, in several smaller batches where learning needs them: see
            `evenstep.plan.update_size`.

    Returns:
        The same trainer.

    Raises:
        ConfigurationError: the trainer's arguments ask for what evenstep cannot do.
    """
    if isinstance(trainer, type):
        raise ConfigurationError(
            f"{trainer.__name__} is a class, and install takes a trainer; trainer_class takes a "
            "class, where a launcher makes the trainer itself"
        )
    made = _with_hooks(type(trainer))
    check_arguments(trainer, policy)
    trainer.__class__ = made
    _begin(trainer, policy, packed, options)
    return trainer


def trainer_class(
    base: type, *, policy: Policy | None = None, packed: bool | None = None, **options: Any
) -> type:
    """A class whose trainers have evenstep installed, for launchers that make the trainer.

    Args:
        base: `transformers.Trainer`, or a class that inherits from it.
        policy, packed, **options: as for `install`.
    """

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        super(made, self).__init__(*args, **kwargs)
        check_arguments(self, policy)
        _begin(self, policy, packed, options)

    made: Any = _with_hooks(base)
    made.__init__ = __init__
    return made


def _with_hooks(base: type) -> type:
    if not issubclass(base, transformers.Trainer):
        raise ConfigurationError(
            f"{base.__module__}.{base.__name__} does not inherit from transformers.Trainer, whose "
            "hooks evenstep needs"
        )
    if trains_on_rollouts(base):
        raise ConfigurationError(
            f"{base.__name__} makes its batches after it has generated, so no policy can; "
            "balance_rollouts(trainer, max_tokens=...) takes it"
        )
    if issubclass(base, EvenTrainer):
        raise ConfigurationError(f"evenstep is installed in {base.__name__} already")
    return type(f"Even{base.__name__}", (EvenTrainer, base), {"__module__": base.__module__})


def _begin(
    trainer: Any, policy: Policy | None, packed: bool | None, options: dict[str, Any]
) -> None:
    trainer.even = TrainerRun(policy, packed, options)
    trainer.args.ignore_data_skip = True  # the loader resumes by itself
    # Before the callbacks that read what this one sets: the epoch, and where training ends.
    trainer.callback_handler.callbacks.insert(0, EvenCallback(trainer.even))
