"""TRL's `GRPOTrainer` and `RLOOTrainer`: the rollouts of an update, balanced over the ranks.

TRL generates for several micro-batches at a time, shuffles each rank's rollouts and cuts them into
micro-batches of equal numbers of rows. Trainer then asks for the loss of one micro-batch after the
other. `compute_loss` only keeps them, until gradients are to be synchronized. Then all rollouts of
the update are there, on all ranks, and nothing has been computed of them: ranks exchange them and
run the update in other micro-batches. All backward passes but the last, which is Trainer's, are run
here. TRL's loss itself is not touched.

Ranks exchange rows of rollouts. TRL pads prompts on the left and completions on the right. What
belongs to each token of a completion is as wide as the completions; what belongs to a whole rollout
has one number, or one column of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import Trainer

from evenstep.cost import Cost
from evenstep.errors import ConfigurationError
from evenstep.integrations.releases import check_hooks
from evenstep.integrations.transformers.loader import check_arguments
from evenstep.integrations.transformers.model_labels import inherits_from_trl
from evenstep.integrations.transformers.trainer_run import gathering_uneven
from evenstep.rebalance import Rebalancer

_LEFT = ("prompt_ids", "prompt_mask")

Row = dict[str, torch.Tensor]


def rows_of(batch: Mapping[str, Any]) -> tuple[list[Row], dict[str, Any]]:
    """The rows of a micro-batch, and what is not of single rows.

    Raises:
        ConfigurationError: the micro-batch has images, or another column that is not known.
    """
    prompts = _lengths(batch["prompt_mask"].flip(1))
    answers = _lengths(batch["completion_mask"])
    width = batch["completion_mask"].shape[1]
    rows: list[Row] = [{} for _ in prompts]
    shared = {}
    for name, column in batch.items():
        if column is None or getattr(column, "ndim", None) == 0:
            shared[name] = column
            continue
        shape = tuple(getattr(column, "shape", ()))
        known = shape[:1] == (len(rows),) and shape[1:] in ((), (1,), (width,))
        if not known and name not in _LEFT:
            raise ConfigurationError(
                f"a micro-batch has {name!r} of shape {shape}, and balance_rollouts knows columns "
                f"of {len(rows)} rows and 1 or {width} tokens, no images; train without it"
            )
        column = column.cpu()
        for row, value, prompt, answer in zip(rows, column, prompts, answers):
            if name in _LEFT:
                value = value[-prompt:]
            elif shape[1:] == (width,):
                value = value[:answer]
            row[name] = value
    return rows, shared


def batch_of(rows: Sequence[Row], device: torch.device) -> dict[str, torch.Tensor]:
    """A micro-batch of rows, as narrow as they allow. Padding is 0, which the masks leave out."""
    batch = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        side = "left" if name in _LEFT else "right"
        made = (
            pad_sequence(values, batch_first=True, padding_side=side)
            if values[0].ndim
            else torch.stack(values)
        )
        batch[name] = made.to(device)
    return batch


def _lengths(mask: torch.Tensor) -> list[int]:
    """Tokens of each row up to the last that counts, and at least one: TRL masks whole completions,
    and a micro-batch without any column of them is none."""
    position = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    found: list[int] = ((mask != 0) * position).amax(1).clamp(min=1).tolist()
    return found


AnyTrainer = TypeVar("AnyTrainer", bound=Any)

_TRAINERS = ("GRPOTrainer", "RLOOTrainer")
_MEANS_OF_ROWS = ("grpo", "dr_grpo", "luspo", "sapo")
"""Losses that are means over the rows of a micro-batch."""
_SUMS = ("dapo", "cispo", "vespo")
"""Losses that are sums, divided by the tokens of all ranks in the generation batch."""


def balance_rollouts(
    trainer: AnyTrainer, *, max_tokens: int, cost: Cost | None = None
) -> AnyTrainer:
    """Has the ranks of a trainer exchange the rollouts of every update before they train on them.
    Loss and gradient remain what they were. Generation and evaluation remain as they are.

    Args:
        trainer: a `trl.GRPOTrainer` or `trl.RLOOTrainer`, or an object of a class that inherits
            from one.
        max_tokens: tokens of a micro-batch, with its padding: at least the longest prompt and the
            longest completion together. `per_device_train_batch_size` no longer says how many
            rollouts a micro-batch has.
        cost: of a micro-batch; None is that of an unknown model: see `UNKNOWN_MODEL`.

    Returns:
        The same trainer.

    Raises:
        ConfigurationError: the trainer's loss depends on how an update is divided into
            micro-batches, or evenstep cannot work with another of its arguments.
    """
    kind = type(trainer)
    if not trains_on_rollouts(kind):
        raise ConfigurationError(
            f"{kind.__name__} is not one of TRL's {' and '.join(_TRAINERS)}; "
            "even.install(trainer, policy=...) is for other trainers"
        )
    if isinstance(trainer, RolloutTrainer):
        raise ConfigurationError(f"the rollouts of this {kind.__name__} are balanced already")
    check_hooks("transformers", Trainer, "compute_loss", "loss_is_scaled_for_ga", "log", "train")
    check_arguments(trainer, None)
    _check_loss(trainer)
    trainer.even = _Rollouts(Rebalancer(max_tokens=max_tokens, packed=False, cost=cost))
    trainer.__class__ = type(
        f"Even{kind.__name__}", (RolloutTrainer, kind), {"__module__": kind.__module__}
    )
    return trainer


def trains_on_rollouts(kind: type) -> bool:
    """Whether a class is one of TRL's that generate, or inherits from one."""
    return inherits_from_trl(kind, _TRAINERS)


def _check_loss(trainer: Any) -> None:
    """
    Raises:
        ConfigurationError: other micro-batches would be another gradient.
    """
    args = trainer.args
    loss_type = getattr(trainer, "loss_type", None)  # RLOOTrainer has one loss: a mean over rows
    if loss_type == "bnpo":
        raise ConfigurationError(
            "loss_type='bnpo' divides each micro-batch by its own tokens, so other micro-batches "
            "have another gradient; 'dapo' divides by the tokens of all"
        )
    if loss_type not in (None, *_MEANS_OF_ROWS, *_SUMS):
        raise ConfigurationError(
            f"loss_type={loss_type!r} is unknown to evenstep, which knows "
            f"{', '.join(_MEANS_OF_ROWS + _SUMS)}"
        )
    of_micro_batches = {
        "entropy_coef": getattr(args, "entropy_coef", 0.0) != 0.0,
        "use_adaptive_entropy": getattr(args, "use_adaptive_entropy", False),
        "top_entropy_quantile": getattr(args, "top_entropy_quantile", 1.0) != 1.0,
        "router_aux_loss_coef": getattr(trainer, "aux_loss_enabled", False),
    }
    for name, is_on in of_micro_batches.items():
        if is_on:
            raise ConfigurationError(
                f"{name} adds to the loss what depends on all tokens of a micro-batch, so other "
                "micro-batches have another gradient; switch it off"
            )
    if trainer.is_deepspeed_enabled:
        raise ConfigurationError(
            "DeepSpeed runs the optimizer in its backward pass, and balanced updates have several; "
            "use FSDP or DDP"
        )
    generated = args.steps_per_generation * trainer.num_iterations
    if loss_type in _SUMS and generated % args.gradient_accumulation_steps:
        raise ConfigurationError(
            f"gradient_accumulation_steps={args.gradient_accumulation_steps} puts rollouts of two "
            f"generation batches into one update, and loss_type={loss_type!r} divides each by its "
            f"own tokens; let it divide steps_per_generation * num_iterations = {generated}"
        )


@dataclass
class _Rollouts:
    rebalancer: Rebalancer
    kept: list[dict[str, Any]] = field(default_factory=list)
    """Micro-batches of this update, as TRL made them."""
    imbalances: list[float] = field(default_factory=list)
    """Of the updates since the last log."""

    def micro_batches(self, device: torch.device) -> list[tuple[dict[str, Any], float]]:
        """Those that this rank trains on, and the scale of each one's loss, where that is a mean
        over rows: TRL or Trainer divides it by the number of micro-batches that TRL made."""
        found: list[Row] = []
        shared: dict[str, Any] = {}
        for batch in self.kept:
            rows, shared = rows_of(batch)
            found += rows
        steps = len(self.kept)
        self.kept.clear()
        prompts = [len(row["prompt_ids"]) for row in found]
        answers = [len(row["completion_ids"]) for row in found]
        update = self.rebalancer.rebalance(
            found, lengths=[p + a for p, a in zip(prompts, answers)], prompts=prompts
        )
        self.imbalances.append(update.plan.imbalance)
        return [
            ({**shared, **batch_of(rows, device)}, scale * steps)
            for rows, scale in zip(update.micro_batches, update.loss_scales("sequence"))
        ]


class RolloutTrainer(Trainer):
    """Comes before a trainer's own class, so that `super()` is that class."""

    even: _Rollouts

    def train(self, *args: Any, **kwargs: Any) -> Any:
        self.even.kept.clear()  # of training that an error ended
        return super().train(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return super().compute_loss(model, inputs, *args, **kwargs)
        self.even.kept.append(inputs)
        none: torch.Tensor = inputs["advantages"].new_zeros((), requires_grad=True)
        if not self.accelerator.sync_gradients:
            return none
        micro_batches = self.even.micro_batches(none.device)
        of_rows = getattr(self, "loss_type", None) not in _SUMS
        parts = 1 if self.loss_is_scaled_for_ga else self.current_gradient_accumulation_steps
        done = torch.zeros_like(none)
        with gathering_uneven(self.accelerator):
            for number, (batch, scale) in enumerate(micro_batches, 1):
                is_last = number == len(micro_batches)
                with nullcontext() if is_last else self.accelerator.no_sync(model):
                    loss = super().compute_loss(model, batch, *args, **kwargs)
                    loss = loss * scale if of_rows else loss
                    if not is_last:
                        self.accelerator.backward(loss / parts)
                        done += loss.detach()
        return loss + done

    def log(self, logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        imbalances = self.even.imbalances
        if "loss" in logs and imbalances:
            logs["imbalance"] = sum(imbalances) / len(imbalances)
            imbalances.clear()
        super().log(logs, *args, **kwargs)
