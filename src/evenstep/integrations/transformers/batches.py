"""`TrainerBatches`: what Trainer walks over, and how far it is.

`gathering_uneven` gathers values of each sample from ranks with different numbers of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from evenstep.batch.step_info import StepInfo
from evenstep.integrations.rank_values import of_all_ranks
from evenstep.loader.dataloader import DataLoader


@contextmanager
def gathering_uneven(accelerator: Any) -> Iterator[None]:
    """While it lasts, the accelerator gathers tensors of different sizes: trainers of preferences
    and of rollouts gather a value of each sample to log it."""
    equal = accelerator.gather

    def gather(values: Any) -> Any:
        if not isinstance(values, torch.Tensor) or not values.ndim:
            return equal(values)
        sizes = of_all_ranks(len(values))
        if len(set(sizes)) == 1:
            return equal(values)
        room = values.new_zeros((max(sizes), *values.shape[1:]))
        room[: len(values)] = values
        parts = equal(room).split(max(sizes))
        return torch.cat([part[:size] for part, size in zip(parts, sizes)])

    accelerator.gather = gather
    try:
        yield
    finally:
        del accelerator.gather


ENDLESS = 1 << 40
"""The updates of an epoch that Trainer is given: the data ends it, not a number."""


class TrainerBatches:
    """Epochs as Trainer iterates over them: one for each `iter`."""

    def __init__(self, loader: DataLoader, *, samples: int = 0) -> None:
        """All ranks make theirs at once.

        Args:
            samples: of the loader's epoch, that were trained on before its checkpoint.
        """
        self.loader = loader
        self.epoch_samples = _epoch_samples(loader)
        """Samples of an epoch, of all ranks; None where unknown."""
        self.dataset = loader.dataset
        self.epoch = loader.epoch
        """Number of the pass."""
        self.samples = samples
        """Trained on in this epoch, of all ranks."""
        self.updates = 0
        """Of this pass."""
        self.ended = False
        """Whether the pass has ended: not where training stops in the middle of it."""
        self._resumed = samples > 0

    def __len__(self) -> int:
        return ENDLESS * self.loader.accumulate

    def __iter__(self) -> Iterator[tuple[Any, StepInfo]]:
        resumed, self._resumed = self._resumed, False
        yield from self._pass(self.samples if resumed else 0)
        # A checkpoint may be of the last step of its epoch. Trainer takes an epoch without a batch
        # for the end of all data.
        if resumed and not self.updates:
            yield from self._pass(0)

    def _pass(self, samples: int) -> Iterator[tuple[Any, StepInfo]]:
        self.epoch, self.samples = self.loader.epoch, samples
        self.updates, self.ended = 0, False
        set_epoch = getattr(self.dataset, "set_epoch", None)
        if callable(set_epoch):  # Trainer's loaders do so; a streamed dataset shuffles by it
            set_epoch(self.epoch)
        for batch, step in self.loader.steps():
            self.samples += step.global_samples
            self.updates += step.ends_update
            yield batch, step
        self.ended = True

    @property
    def position(self) -> float | None:
        """Epochs trained on, with a fraction; None where an epoch's size is unknown."""
        total = self.epoch_samples
        return None if total is None else self.epoch + min(1.0, self.samples / max(total, 1))


def next_update(batches: Iterator[tuple[Any, StepInfo]]) -> list[tuple[Any, StepInfo]]:
    """The batches of the next update; empty at the end of an epoch."""
    update = []
    for batch, step in batches:
        update.append((batch, step))
        if step.ends_update:
            break
    return update


def _epoch_samples(loader: DataLoader) -> int | None:
    # Where the user's samplers are those of single ranks, so are their sizes.
    sizes = of_all_ranks(loader.epoch_samples)
    return None if None in sizes else sum(sizes) // len(sizes)
