"""`install` and `trainer_class`: what users call."""

from __future__ import annotations

from typing import Any, TypeVar

from evenstep.errors import ConfigurationError
from evenstep.integrations.releases import check_hooks, importing

with importing("transformers", "transformers accelerate"):
    import transformers

from evenstep.integrations.transformers.hooks import EvenTrainer
from evenstep.integrations.transformers.loader import check_arguments
from evenstep.integrations.transformers.rollouts import trains_on_rollouts
from evenstep.integrations.transformers.trainer_run import EvenCallback, TrainerRun
from evenstep.plan.policy import Policy

AnyTrainer = TypeVar("AnyTrainer", bound=Any)

check_hooks(
    "transformers",
    transformers.Trainer,
    "compute_loss",
    "get_batch_samples",
    "get_train_dataloader",
    "log",
    "save_model",
    "set_initial_training_values",
    "train",
    "training_step",
)


def install(
    trainer: AnyTrainer,
    *,
    policy: Policy | None = None,
    packed: bool | None = None,
    **options: Any,
) -> AnyTrainer:
    """Makes a trainer train on evenstep's batches. Evaluation and prediction remain as they are.

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
