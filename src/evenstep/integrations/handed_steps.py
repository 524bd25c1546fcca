"""Steps in the hands of a loop that scales its losses itself: one that forgets to is stopped.

A loss that is not multiplied by its `loss_scale` trains wrongly without a sign of it. So while a
pass is under way, every step of an optimizer is followed by a look at what it was made of.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import fields
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from evenstep.batch.step_info import StepInfo, attach_step
from evenstep.errors import ConfigurationError


class HandedStep(StepInfo):
    """A `StepInfo` that notes whether its loss scale was read."""

    scaled = False

    def __getattribute__(self, name: str) -> Any:
        if name in ("loss_scale", "loss_scales"):
            object.__setattr__(self, "scaled", True)
        return super().__getattribute__(name)

    def put_into(self, batch: Any) -> None:
        """
        Raises:
            ConfigurationError: the batch is no mapping.
        """
        if not attach_step(batch, self):
            raise ConfigurationError(
                f"the batch is a {type(batch).__name__}, which cannot carry its step; let "
                "collate_fn return a dict"
            )
        object.__setattr__(self, "scaled", False)

    @classmethod
    def of(cls, step: StepInfo, times: int = 1) -> HandedStep:
        """A copy whose loss scales are `times` as large, for trainers that divide by as much."""
        values = {field.name: getattr(step, field.name) for field in fields(step)}
        values["loss_scale"] *= times
        values["loss_scales"] = tuple(scale * times for scale in step.loss_scales)
        return cls(**values)


def watched(
    steps: Iterable[tuple[Any, StepInfo]],
    *,
    times: int,
    scaling: bool,
    counts: Callable[[], bool],
    update_option: str,
) -> Generator[tuple[Any, HandedStep], None, None]:
    """Hands steps on.

    Args:
        times: see `HandedStep.of`.
        scaling: whether losses have to be scaled at all.
        counts: whether an optimizer that has just stepped may be one that trains on these steps.
        update_option: the trainer's name for the number of steps of an update.

    Raises:
        ConfigurationError: from an optimizer's ``step``: a loss before it was not scaled, or it is
            not the end of an update.
    """
    handed: list[HandedStep] = []  # since an optimizer stepped: the last, and any not scaled

    def check(*_: object) -> None:
        if not handed or not counts():
            return
        last, unscaled = handed[-1], [step.step for step in handed if not step.scaled]
        handed.clear()
        if scaling and unscaled:
            raise ConfigurationError(
                f"an optimizer has stepped, and the loss of step {unscaled[0]} was not multiplied "
                "by its loss_scale, so its gradient is wrong; write `loss = "
                "evenstep.pop_step(batch).loss_scale * model(**batch).loss`; give a loader "
                'loss_scaling="none" if no loss is taken of its batches, or one that is divided by '
                "the tokens of all ranks already"
            )
        if not last.ends_update:
            raise ConfigurationError(
                f"an optimizer has stepped after step {last.step}, in the middle of an update of "
                f"{last.accumulate} steps; {update_option}, and leave a loop only where "
                "step.ends_update"
            )

    hook = register_optimizer_step_post_hook(check)
    try:
        for batch, step in steps:
            handed[:] = [one for one in handed if not one.scaled][:1]
            handed.append(HandedStep.of(step, times))
            yield batch, handed[-1]
    finally:
        hook.remove()
