"""`EvenCallback`: when an epoch and the training end."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from evenstep.integrations.transformers.run import TrainerRun


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
