"""Custom loops with Hugging Face Accelerate.

from evenstep.integrations import accelerate as even

model, optimizer, loader = even.prepare(accelerator, model, optimizer, loader)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import torch

from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import HandedSteps, add_hooks, scaled_loss
from evenstep.integrations.job_facts import take_cost, waits_at_updates
from evenstep.integrations.rank_values import check_ranks, read_state, save_state
from evenstep.integrations.releases import check_hooks, importing
from evenstep.loader.dataloader import DataLoader

with importing("accelerate", "accelerate"):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.state import GradientState
    from accelerate.utils import send_to_device

check_hooks(
    "accelerate",
    Accelerator,
    "backward",
    "non_blocking",
    "register_save_state_pre_hook",
    "register_load_state_pre_hook",
)
check_hooks("accelerate", DataLoaderStateMixin, "begin", "end")
check_hooks("accelerate", GradientState, "sync_with_dataloader")

_prepared: WeakKeyDictionary[Accelerator, int] = WeakKeyDictionary()  # loaders of each


class EvenAccelerator(Accelerator):
    """Scales every loss by the step that it is of."""

    def backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        times = self.gradient_accumulation_steps  # by which it is divided there
        super().backward(scaled_loss(self, loss, times), **kwargs)


class AcceleratedLoader(HandedSteps, DataLoaderStateMixin):
    """An evenstep loader in a loop that an `Accelerator` drives."""

    BACKWARD = "accelerator.backward(loss)"
    UPDATES = "wrap each step in `with accelerator.accumulate(model)`"

    def __init__(self, accelerator: Accelerator, loader: DataLoader) -> None:
        self.gradient_state = GradientState()
        super().__init__(accelerator, loader)

    def _counts(self) -> bool:
        return bool(self._owner.sync_gradients)

    def __iter__(self) -> Iterator[Any]:
        """
        Raises:
            ConfigurationError: from an optimizer's ``step``: see
                `evenstep.integrations.handed_steps`.
        """
        accelerator = self._owner
        self._follow()
        steps = self._handed()
        self.begin()
        try:
            for batch, step in steps:
                # Accelerate ends an update after so many steps, or where the data ends.
                self.end_of_dataloader = step.ends_update and step.micro_step + 1 < step.accumulate
                if accelerator.device_placement:
                    batch = send_to_device(
                        batch, accelerator.device, non_blocking=accelerator.non_blocking
                    )
                yield batch
        finally:
            self.end()
            steps.close()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"an evenstep loader under Accelerate has no {name!r}, but its attribute `loader` may. "
            "skip_first_batches is not needed: accelerator.load_state resumes in mid-epoch"
        )

    @property
    def dataset(self) -> Any:
        return self.loader.dataset

    def _follow(self) -> None:
        """Makes updates of the loader and of the accelerator equally long; one step of the latter
        may be what the loop ends itself."""
        accelerator, loader = self._owner, self.loader
        if loader.update_tokens is not None:
            loader.learn()
            accelerator.gradient_accumulation_steps = loader.accumulate
        elif accelerator.gradient_accumulation_steps > 1:
            loader.accumulate = accelerator.gradient_accumulation_steps

    def _load(self, folder: str | os.PathLike[str], name: str) -> None:
        if self.loader.update_tokens is None:
            self._follow()
        self.loader.load_state_dict(read_state(folder, name))

    def _save(self, folder: str | os.PathLike[str], name: str) -> None:
        if self.step is not None and not self.step.ends_update:
            warnings.warn(
                f"a checkpoint after step {self.step.step}, in the middle of an update, lacks the "
                "gradients that are not applied yet; call save_state where "
                "accelerator.sync_gradients",
                stacklevel=4,
            )
        save_state(folder, name, self.loader.state_dict())


def prepare(accelerator: Accelerator, *objects: Any) -> Any:
    """What ``accelerator.prepare(*objects)`` does, where evenstep loaders are among the objects.

    Batches of such a loader are on the accelerator's device, and its updates have as many steps as
    ``gradient_accumulation_steps``, except for a short last one of an epoch. (With `update_tokens`
    the loader sets that number when a pass begins.) ``accelerator.backward`` then scales their
    losses, so that the gradient of an update is that of all its samples in one batch. An `Even`
    without a cost takes that of the one model with a ``config`` that is among the objects: see
    `evenstep.DataLoader.take_cost`. Where updates have several steps, under DDP and ZeRO-1, it
    gets ``sync="update"``.
    ``save_state`` and ``load_state`` save and restore the position of each loader, on any number of
    ranks; several loaders are told apart by the order in which they were prepared.

    Returns:
        The prepared objects, in order; a single object by itself.

    Raises:
        ConfigurationError: there is no evenstep loader, or its batches are lists of micro-batches;
            the accelerator's updates continue into the next epoch, or it averages over other
            ranks than share the data.
    """
    check_ranks("Accelerate", accelerator.num_processes)
    others = [one for one in objects if not isinstance(one, DataLoader)]
    if len(others) == len(objects):
        names = ", ".join(type(one).__name__ for one in objects)
        raise ConfigurationError(
            f"there is no evenstep.DataLoader among {names}; accelerator.prepare takes them"
        )
    if not GradientState().sync_with_dataloader:
        raise ConfigurationError(
            "sync_with_dataloader=False lets an update go on in the next epoch, and an evenstep "
            "loader ends it with the epoch; leave it out"
        )
    add_hooks(accelerator, EvenAccelerator)
    done = accelerator.prepare(*others) if others else ()
    done = [done] if len(others) == 1 else done
    rest = iter(done)
    waits = waits_at_updates(accelerator, done)
    prepared = [
        _prepared_loader(accelerator, one, others, waits)
        if isinstance(one, DataLoader)
        else next(rest)
        for one in objects
    ]
    return prepared[0] if len(prepared) == 1 else tuple(prepared)


def _prepared_loader(
    accelerator: Accelerator, loader: DataLoader, others: list[Any], waits: bool
) -> AcceleratedLoader:
    """
    Args:
        waits: see `waits_at_updates`.
    """
    if loader.update_tokens is not None and accelerator.state.deepspeed_plugin is not None:
        raise ConfigurationError(
            f"update_tokens={loader.update_tokens} is not for DeepSpeed; give the loader "
            "accumulate=, and Accelerator(gradient_accumulation_steps=) the same"
        )
    take_cost(loader, others)
    # With one step, an update of several is what the loop ends itself, and its backward passes may
    # all wait.
    if waits and (accelerator.gradient_accumulation_steps > 1 or loader.update_tokens is not None):
        loader.take_sync()
    prepared = AcceleratedLoader(accelerator, loader)
    number = _prepared.get(accelerator, 0)
    _prepared[accelerator] = number + 1
    name = f"evenstep_loader_{number}"
    accelerator.register_save_state_pre_hook(
        lambda models, weights, folder: prepared._save(folder, name)
    )
    accelerator.register_load_state_pre_hook(lambda models, folder: prepared._load(folder, name))
    return prepared
