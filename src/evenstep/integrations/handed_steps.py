"""Steps in a custom training loop: losses are scaled in the framework's ``backward``, and a loop
that trains wrongly is stopped.

An unscaled loss trains wrongly without any sign of it. So during a pass, a hook checks after every
optimizer step which losses its gradients came from.

`without_loss` makes batches that count for nothing, of a rank without samples, where trainers know
no ``loss_scale``.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from evenstep.batch.labels import IGNORE_INDEX
from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError
from evenstep.integrations.rank_values import ranks
from evenstep.loader.dataloader import DataLoader
from evenstep.tools.doctor.software import warn_of_plans

LABELS = ("labels", "shift_labels")
"""Fields that a trainer's loss may be taken of."""


def without_loss(batch: dict[str, Any]) -> dict[str, Any]:
    """A copy of a batch of which no label counts."""
    return {
        key: torch.full_like(value, IGNORE_INDEX) if key in LABELS else value
        for key, value in batch.items()
    }


def scaled(loss: torch.Tensor, factor: float) -> torch.Tensor:
    """A loss times a factor: 0 for a factor of 0, although the mean over no tokens is NaN."""
    return loss * factor if factor else torch.nan_to_num(loss) * 0.0


_passes: WeakKeyDictionary[Any, list[HandedSteps]] = WeakKeyDictionary()  # of each framework object


def check_one_batch(loader: DataLoader) -> None:
    """
    Raises:
        ConfigurationError: the loader's batches are lists of micro-batches.
    """
    if loader.policy.micro_batches > 1:
        raise ConfigurationError(
            f"{loader.policy!r} makes {loader.policy.micro_batches} micro-batches of a step, with "
            "a loss scale each; use another policy, with accumulate=, or iterate loader.steps()"
        )


class HandedSteps:
    """A loader in a loop that `owner` drives: an `Accelerator` or a `Fabric`."""

    BACKWARD: str
    """The framework's, as its users write it."""
    UPDATES: str
    """Its way to step an optimizer at the end of an update."""

    def __init__(self, owner: Any, loader: DataLoader) -> None:
        """
        Raises:
            ConfigurationError: the loader's batches are lists of micro-batches.
        """
        check_one_batch(loader)
        self.loader = loader
        self.step: StepInfo | None = None
        """Of the batch that the loop is at; None outside of a pass. The framework's ``backward``
        applies its loss scale."""
        self._owner = owner
        self._scaled = False  # whether the loss of `step` was
        self._unscaled: list[int] = []  # steps before it, since an optimizer stepped
        self._stepped = False  # an optimizer, since `step` came

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def epoch(self) -> int:
        """Number of the next pass: after a checkpoint was loaded, of the one to resume."""
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def _handed(self) -> Generator[tuple[Any, StepInfo], None, None]:
        """One pass.

        Raises:
            ConfigurationError: from an optimizer's ``step``: a loss before it was not scaled, or it
                is not the end of an update.
        """
        warn_of_plans(self._owner.device, ranks()[0])
        passes = _passes.setdefault(self._owner, [])
        hook = register_optimizer_step_post_hook(self._check)
        passes.append(self)
        try:
            for batch, step in self.loader.steps():
                if self.step is not None and not self._scaled and not self._stepped:
                    self._unscaled.append(self.step.step)
                self.step, self._scaled, self._stepped = step, False, False
                yield batch, step
        finally:
            hook.remove()
            passes.remove(self)
            self.step = None
            self._unscaled.clear()

    def _counts(self) -> bool:
        """Whether an optimizer that has just stepped may train on these steps."""
        return True

    def scale(self, loss: torch.Tensor, times: int) -> torch.Tensor:
        if self.step is None or self.loader.loss_scaling == "none":
            return loss
        self._scaled = True
        return scaled(loss, self.step.loss_scale * times)

    def _check(self, *_: object) -> None:
        if self.step is None or self._stepped or not self._counts():
            return
        unscaled = self._unscaled + ([] if self._scaled else [self.step.step])
        self._unscaled = []
        self._stepped = True
        if unscaled and self.loader.loss_scaling != "none":
            raise ConfigurationError(
                f"an optimizer has stepped, and the loss of step {unscaled[0]} was not scaled; "
                f"write {self.BACKWARD} in place of loss.backward(), or give the loader "
                'loss_scaling="none" if there is none to scale'
            )
        if not self.step.ends_update:
            raise ConfigurationError(
                f"an optimizer has stepped after step {self.step.step}, in the middle of an update "
                f"of {self.step.accumulate}; {self.UPDATES}, and leave loops at step.ends_update"
            )


def scaled_loss(owner: Any, loss: torch.Tensor, times: int = 1) -> torch.Tensor:
    """A loss as its backward pass needs it: that of the step which `owner`'s loop is at.

    Args:
        times: by how much the framework divides it.
    """
    passes = _passes.get(owner)
    return passes[-1].scale(loss, times) if passes else loss


def add_hooks(owner: Any, hooks: type) -> None:
    """Lets `owner` inherit from `hooks`, whose methods override its class's."""
    kind = type(owner)
    if not issubclass(kind, hooks):
        owner.__class__ = type(kind.__name__, (hooks, kind), {"__module__": kind.__module__})
