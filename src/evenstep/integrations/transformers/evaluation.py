"""`EvaluationBatches`: what Trainer evaluates on: each sample once, in batches of the policy, on
ranks with different numbers of samples. Predictions are put back into the order of the dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from accelerate.utils import recursively_apply
from torch.utils.data import IterableDataset

from evenstep.arrays import Int64Array
from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError
from evenstep.integrations.handed_steps import without_loss
from evenstep.integrations.job_facts import MeanLoss
from evenstep.integrations.rank_values import gathered, of_all_ranks
from evenstep.integrations.transformers.loader import make_loader, taking_over
from evenstep.integrations.transformers.model_labels import trains_preferences
from evenstep.loader.dataloader import DataLoader
from evenstep.loader.options import Faults
from evenstep.loader.row_order import ORDERS

_OF_TRAINING = (*ORDERS, "shard_sampler", "update_tokens", "step_log")
"""Options of a loader that evaluation does without."""


def evaluation_loader(
    trainer: Any, make: Callable[[], Any], *, loss_only: bool
) -> EvaluationBatches | Any:
    """Trainer's own loader, where its batches cannot be the policy's: see docs/integrations.md.

    Args:
        make: Trainer's own loader.
        loss_only: no predictions are asked for.
    """
    run, args = trainer.even, trainer.args
    policy = run.policy
    alike = (
        policy is not None
        and policy.deals_on_demand
        and not policy.fits_memory
        and not trains_preferences(trainer)
        # These are of Trainer's own batches.
        and not args.batch_eval_metrics
        and args.eval_do_concat_batches
        and "loss" not in args.include_for_metrics
    )
    with taking_over(trainer, training=False) if alike else nullcontext():
        theirs = make()
    if isinstance(theirs, DataLoader):
        return EvaluationBatches(theirs)
    if not alike:
        return theirs
    if isinstance(theirs, torch.utils.data.DataLoader) and not isinstance(
        theirs.dataset, IterableDataset
    ):
        options = {name: value for name, value in run.options.items() if name not in _OF_TRAINING}
        faults = replace(options.get("faults") or Faults(), exhausted="pad")
        options |= {"accumulate": 1, "drop_last": False, "faults": faults}
        loader = make_loader(trainer, theirs, policy, run.packed, options)
        if loss_only or not loader.policy.packed:
            loader.take_cost(trainer.model)
            return EvaluationBatches(loader)
    return trainer.accelerator.prepare(theirs)


class EvaluationBatches:
    """One evaluation.

    Raises:
        ConfigurationError: the loader would repeat samples, or has no order to put them back into.
    """

    def __init__(self, loader: DataLoader) -> None:
        if not loader.policy.deals_on_demand or isinstance(loader.dataset, IterableDataset):
            raise ConfigurationError(
                f"to evaluate, an evenstep.DataLoader has a map-style dataset and policy=evenstep."
                f"Even(...), and this one {type(loader.dataset).__name__} and {loader.policy.name}"
            )
        self.loader = loader
        self.dataset = loader.dataset
        self.by_token = loader.loss_scaling == "token"
        self.step: StepInfo | None = None
        """Of the batch that is evaluated."""
        self.losses = MeanLoss()
        self.has_losses = False
        self._indices: list[Any] = []  # of this rank, a tuple for each step
        self._order: Int64Array | None = None

    def __iter__(self) -> Iterator[Any]:
        steps = self.loader.steps()
        try:
            while True:
                with torch.no_grad():  # Trainer turns gradients off later
                    found = next(steps, None)
                if found is None:
                    break
                batch, step = found
                self.step = step
                self._indices.append(() if step.filler else step.indices)
                yield without_loss(batch) if step.filler else batch
        finally:
            self.step = None
            self.loader.close()

    @property
    def weight(self) -> int:
        """Of the loss of the batch."""
        assert self.step is not None
        if self.step.filler:
            return 0
        return self.step.supervised_tokens if self.by_token else self.step.samples

    def add(self, loss: Any) -> None:
        """Takes the mean loss of the batch."""
        if loss is not None:
            self.has_losses = True
            self.losses.add(loss, self.weight)

    @contextmanager
    def gathering(self, trainer: Any) -> Iterator[None]:
        """While it lasts, the trainer gathers the rows of the step's samples, and its metrics get
        those of all in the order of the dataset."""
        given = trainer.compute_metrics
        trainer.gather_function = partial(self._gathered, trainer.accelerator.gather)
        if given is not None:

            def ordered(values: Any, *arguments: Any) -> Any:
                names = ("predictions", "label_ids", "inputs")
                found = {name: self.ordered(getattr(values, name)) for name in names}
                return given(type(values)(**found), *arguments)

            trainer.compute_metrics = ordered
        try:
            yield
        finally:
            trainer.compute_metrics = given
            trainer.gather_function = trainer.accelerator.gather_for_metrics

    def _gathered(self, gather: Callable[[Any], Any], values: Any, **_: Any) -> Any:
        assert self.step is not None
        step, sizes = self.step, self.step.totals.samples.tolist()
        # A rank without samples has those of another, or its own again.
        own = sizes[step.rank]

        def rows(value: torch.Tensor) -> torch.Tensor:
            if not value.ndim:
                return gather(value)
            if own and len(value) != own:
                raise ConfigurationError(
                    f"the model has {len(value)} rows of output for {own} samples, so they cannot "
                    "be put into the order of the dataset; set prediction_loss_only=True"
                )
            return gathered(gather, value[:own], sizes)

        return recursively_apply(rows, values)

    def ordered(self, values: Any) -> Any:
        """Rows of all samples as they were gathered, in the order of the dataset. All ranks call
        it."""
        if values is None:
            return None
        if self._order is None:
            steps = zip(*of_all_ranks(self._indices))
            indices = [index for ranks in steps for rank in ranks for index in rank]
            self._order = np.argsort(np.array(indices, np.int64))
        if isinstance(values, (list, tuple)):
            return type(values)(self.ordered(value) for value in values)
        if isinstance(values, Mapping):
            return {name: self.ordered(value) for name, value in values.items()}
        return values[self._order]
