"""`TrainerRun`: one call of `train`: its loader, checkpoint and schedule; and its callback.

`TrainerBatches` are what Trainer walks over, and how far it is. `gathering_uneven` gathers values
of each sample from ranks with different numbers of them.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from evenstep.batch.step_info import StepInfo
from evenstep.data.resumable import tell_epoch
from evenstep.errors import ConfigurationError
from evenstep.integrations.job_facts import StepValues, estimate_steps
from evenstep.integrations.rank_values import (
    by_rank_0,
    gathered,
    of_all_ranks,
    read_state,
    save_state,
)
from evenstep.loader.dataloader import DataLoader
from evenstep.loader.schedule import follow_progress
from evenstep.plan.policy import Policy


@contextmanager
def gathering_uneven(accelerator: Any) -> Iterator[None]:
    """While it lasts, the accelerator gathers tensors of different sizes: trainers of preferences
    and of rollouts gather a value of each sample to log it."""
    equal = accelerator.gather

    def gather(values: Any) -> Any:
        if not isinstance(values, torch.Tensor) or not values.ndim:
            return equal(values)
        return gathered(equal, values, of_all_ranks(len(values)))

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
        # Where the user's samplers are those of single ranks, so are their sizes.
        sizes = of_all_ranks(loader.epoch_samples)
        self.epoch_samples = None if None in sizes else sum(sizes) // len(sizes)
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
        tell_epoch(self.dataset, self.epoch)  # as Trainer's do; a streamed one shuffles by it
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


logger = logging.getLogger("evenstep")

NAME = "evenstep"  # of the file in a checkpoint
_TRAINER = "trainer"  # the key of what is saved beside the loader's state


class TrainerRun:
    """What the hooks of one trainer share."""

    batches: TrainerBatches

    def __init__(self, policy: Policy | None, packed: bool | None, options: dict[str, Any]) -> None:
        self.policy = policy
        self.packed = packed
        self.options = options
        self.evaluated: Any = None
        """The `EvaluationBatches` of an evaluation; None outside of one."""
        self.begin(None)

    def begin(self, checkpoint: str | None) -> None:
        """All ranks call it.

        Raises:
            MismatchError: the checkpoint was saved without evenstep.
        """
        self.values = StepValues()
        """What is logged beside the loss."""
        self.factors: deque[float] = deque()
        """For the losses of the update that are still to come."""
        self.factor: float | None = None
        """For the loss that is being computed; None outside of training steps."""
        self.samples = 0
        """Trained on since `train` was called, of all ranks."""
        self.epochs: float = 0
        self._planned: int | None = None
        self._state = None if checkpoint is None else read_state(checkpoint, NAME)
        self._before: dict[str, Any] = {} if self._state is None else self._state.pop(_TRAINER)
        self.values.tokens = self._before.get("tokens", 0)

    def take(self, loader: DataLoader) -> TrainerBatches:
        """What Trainer walks over; a checkpoint's state is loaded."""
        if self._state is not None:
            loader.load_state_dict(self._state)
            self._state = None
        loader.learn()
        self.batches = TrainerBatches(loader, samples=self._before.get("samples", 0))
        return self.batches

    def is_over(self, args: Any) -> bool:
        """Whether all epochs have been trained on, as far as their size is known."""
        position = self.batches.position
        return position is not None and position >= args.num_train_epochs

    def updates_per_epoch(self) -> int | None:
        """An estimate, rather too high than too low; None where unknown. All ranks call it."""
        loader = self.batches.loader
        steps = estimate_steps(loader)
        return None if steps is None else math.ceil(steps / loader.accumulate)

    def planned(self, args: Any, steps: int) -> int:
        """Updates that the learning rate is planned for: where epochs end training, those that it
        was planned for before the checkpoint, so that its curve is the same."""
        by_epochs = args.max_steps <= 0 and hasattr(self, "batches")
        self._planned = self._before.get("planned", steps) if by_epochs else None
        return self._planned or steps

    def follow(self, args: Any, scheduler: Any) -> None:
        """Has a scheduler that Trainer made follow the epochs, where they end training."""
        if self._planned is None or not isinstance(scheduler, LambdaLR):
            return
        follow_progress(
            scheduler,
            lambda: (self.batches.position or 0.0) / args.num_train_epochs,
            steps=self._planned,
            # Fewer than 1 are a share of training.
            warmup_steps=int(args.warmup_steps),
        )
        if args.process_index == 0:
            logger.info(
                "the learning rate follows the share of the samples trained on, as the number of "
                "updates is an estimate (%s)",
                self._planned,
            )

    def max_steps(self, args: Any, each: int) -> int:
        """Updates until training ends, those before the checkpoint included.

        Args:
            each: `updates_per_epoch`.
        """
        left = max(0.0, args.num_train_epochs - (self.batches.position or 0.0))
        return self.updates_before + math.ceil(left * each)

    @property
    def updates_before(self) -> int:
        """Updates before the checkpoint."""
        return self._before.get("updates", 0)

    def save(self, folder: str, updates: int) -> None:
        """All ranks call it."""
        os.makedirs(folder, exist_ok=True)
        loader = self.batches.loader
        beside = {
            "samples": self.batches.samples,
            "tokens": self.values.tokens,
            "updates": updates,
            "planned": self._planned,
        }
        save_state(folder, NAME, {**loader.state_dict(), _TRAINER: beside})

    def close(self) -> None:
        if hasattr(self, "batches"):
            self.batches.loader.close()


def last_checkpoint(folder: str) -> str | None:
    """The newest checkpoint that was saved to the end, or else the newest; None where there is
    none. All ranks call it; rank 0 looks."""

    def found() -> str | None:
        prefix = f"{PREFIX_CHECKPOINT_DIR}-"
        numbers = (path.name.removeprefix(prefix) for path in Path(folder).glob(f"{prefix}*"))
        newest_first = sorted((int(n) for n in numbers if n.isdigit()), reverse=True)
        paths = [Path(folder) / f"{prefix}{number}" for number in newest_first]
        needed = (f"{NAME}.json", "trainer_state.json")
        whole = [path for path in paths if all((path / name).exists() for name in needed)]
        if whole and whole[0] != paths[0]:
            logger.warning("%s was not saved to its end; %s is resumed", paths[0], whole[0])
        return str((whole or paths)[0]) if paths else None

    return by_rank_0(found, ConfigurationError)


class EvenCallback(TrainerCallback):
    """Keeps `state.epoch` and `state.max_steps` true: the number of updates was an estimate."""

    def __init__(self, run: TrainerRun) -> None:
        self._run = run

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        state.num_train_epochs = self._run.epochs

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """`control` ends training after the update at which `max_steps` is reached, and has it
        saved and evaluated as asked for."""
        if args.max_steps > 0:
            return
        after = state.global_step + 1
        is_last = self._run.is_over(args)
        state.max_steps = after if is_last else max(state.max_steps, after + 1)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        batches = self._run.batches
        position = batches.position
        if position is None:  # as Trainer itself counts
            position = batches.epoch + min(1.0, batches.updates / args.max_steps)
        state.epoch = position

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        batches = self._run.batches
        if not batches.ended:
            return
        state.epoch = float(batches.epoch + 1)
        if args.max_steps > 0 or state.epoch < args.num_train_epochs:
            return
        # Fewer samples came than were counted on, so no update was known to be the last.
        control.should_training_stop = True
        state.max_steps = state.global_step
        if args.save_strategy == "steps" and state.global_step % state.save_steps:
            control.should_save = True
