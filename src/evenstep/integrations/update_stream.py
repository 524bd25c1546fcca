"""Micro-batches for trainers that have no epochs: they take and count k micro-batches an update.

torchtitan and Megatron-LM read one iterator for the whole job. An epoch rarely ends with a whole
update, so what an update lacks is filled with micro-batches that bear no loss: an update never
mixes epochs, and a trainer that drops a short update at the end of the data drops nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch.distributed as dist

from evenstep.batch.step_info import StepInfo
from evenstep.errors import ConfigurationError, MismatchError
from evenstep.integrations.handed_steps import without_loss
from evenstep.integrations.job_facts import StepValues
from evenstep.integrations.rank_values import all_parts
from evenstep.loader.dataloader import DataLoader
from evenstep.plan.policies.even.even import Even
from evenstep.plan.policy import Policy

_KEY = "evenstep"


class UpdateStream:
    """The packed micro-batches of one rank, epoch after epoch. A step whose batch is a list of them
    is handed out one by one. The trainer divides their losses by the tokens of all ranks, so none
    is scaled here."""

    def __init__(
        self,
        dataset: Any,
        policy: Policy,
        per_update: int,
        *,
        group: dist.ProcessGroup | str | None = None,
        epochs: int = 0,
        **options: Any,
    ) -> None:
        """
        Args:
            dataset: of mappings with ``input_ids`` and, aligned with them, ``labels``.
            policy: one that packs; an `Even` does so in any case.
            per_update: micro-batches that the trainer takes for one update.
            group: the data-parallel ranks; None is the default group.
            epochs: after which it ends; 0 is never.
            options: other arguments of `evenstep.DataLoader`.

        Raises:
            ConfigurationError: the policy pads, or makes another number of micro-batches; or as
                `evenstep.DataLoader`.
        """
        if isinstance(policy, Even):
            policy = replace(policy, packed=True)
        if not policy.packed:
            raise ConfigurationError(
                f"{type(policy).__name__} makes padded batches; give a policy with packed=True"
            )
        if policy.micro_batches not in (1, per_update):
            raise ConfigurationError(
                f"the policy makes {policy.micro_batches} micro-batches for an update, and the "
                f"trainer takes {per_update}; make them equal"
            )
        self.loader = DataLoader(
            dataset,
            policy=policy,
            accumulate=per_update if policy.micro_batches == 1 else 1,
            loss_scaling="none",
            group=group,
            **{"shuffle": True, "labels": "causal", **options},
        )
        self.values = StepValues()
        """What to log beside the loss."""
        self.step: StepInfo | None = None
        """Of the micro-batch that was handed out last."""
        self._per_update, self._epochs = per_update, epochs
        self._group = None if isinstance(group, str) else group
        self._handed = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """
        Raises:
            ConfigurationError: an epoch has no samples.
        """
        first = True
        while not self._epochs or self.loader.epoch < self._epochs:
            handed = self._handed
            yield from self._epoch()
            if self._handed == handed and not first:  # a resumed epoch may have nothing left
                raise ConfigurationError("an epoch has no samples; give a dataset that has some")
            first = False

    def _epoch(self) -> Iterator[dict[str, Any]]:
        for batch, step in self.loader.steps():
            self.step = step
            self.values.add(step)
            rows = batch if step.loss_scales else [batch]
            for row, scale in zip(rows, step.loss_scales or (step.loss_scale,), strict=True):
                self._handed += 1
                yield row if scale else without_loss(row)
            while step.ends_update and self._handed % self._per_update:
                self._handed += 1
                yield without_loss(rows[-1])

    def close(self) -> None:
        """Ends the loader's processes."""
        self.loader.close()

    def state_dict(self) -> dict[str, Any]:
        """Where the trainer is, with the parts of all data-parallel ranks, which all call it: the
        same on all of them, and for any number of them to load.

        Raises:
            ConfigurationError: in the middle of an update.
        """
        if over := self._handed % self._per_update:
            raise ConfigurationError(
                f"a state is asked for {over} micro-batches into an update of {self._per_update}: "
                "the trainer takes another number of them; set it to what the trainer takes"
            )
        return {_KEY: json.dumps(all_parts(self.loader.state_dict(), self._group))}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes after the update that a state was saved at, on any number of ranks. Before the
        first micro-batch.

        Raises:
            MismatchError: the state is of another loader.
        """
        if _KEY not in state:
            raise MismatchError(
                f"the state has {sorted(state)} and no {_KEY!r}: it was saved with another data "
                "loader, and does not say where this one was; begin a new run from its model"
            )
        self.loader.load_state_dict(json.loads(state[_KEY]))
