"""TRL's trainers of preferences: DPO, KTO, reward models and their kin.

A sample of theirs has fields such as ``chosen_ids`` and ``rejected_ids``, of which the collate
function makes several rows, all padded to one length. So a sample has as many tokens as these rows
hold when it is collated alone, and a group as many as the batch will hold with its padding. The
loss is a mean over samples, not over tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenstep.errors import ConfigurationError, SampleError
from evenstep.integrations.transformers.trl_classes import inherits_from_trl
from evenstep.plan.policy import Policy

logger = logging.getLogger("evenstep")

_TRAINERS = ("DPOTrainer", "KTOTrainer", "RewardTrainer")
_OF_WHOLE_BATCHES = ("sft", "aot", "aot_unpaired")
"""Losses of DPOTrainer that are no mean over pairs: of tokens, or of all pairs sorted."""


def trains_preferences(trainer: Any) -> bool:
    """Whether the trainer's class is one of TRL's for preferences, or inherits from one."""
    return inherits_from_trl(type(trainer), _TRAINERS)


def check_padded(policy: Policy, packed: bool | None) -> None:
    """
    Raises:
        ConfigurationError: batches are to be packed.
    """
    if packed or policy.packed:
        raise ConfigurationError(
            "packed=True: TRL's trainers of preferences take padded pairs; leave it out"
        )


def preference_options(trainer: Any, collate_fn: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """Options of the loader that such a trainer needs."""
    inexact = [each for each in getattr(trainer, "loss_types", ()) if each in _OF_WHOLE_BATCHES]
    if inexact and trainer.is_world_process_zero():
        logger.warning(
            "loss_type %s is not a mean over pairs, so its gradient depends on how an update is "
            "divided into batches; evenstep weighs batches by their pairs",
            ", ".join(inexact),
        )
    return {"length_fn": TokensOfRows(collate_fn), "loss_scaling": "sample"}


@dataclass(frozen=True)
class TokensOfRows:
    """The tokens of all rows that the collate function makes of a sample, with their padding."""

    collate_fn: Callable[[list[Any]], Any]

    def __call__(self, sample: Any) -> int:
        batch = collated_alone(self.collate_fn, sample)
        rows = [v for k, v in batch.items() if k.endswith("input_ids")]
        if not rows:
            raise SampleError(
                f"the collate function makes no field that ends in 'input_ids': {sorted(batch)}"
            )
        return sum(len(each) for each in rows) * max(each.shape[1] for each in rows)


def collated_alone(collate_fn: Callable[[list[Any]], Any], sample: Any) -> Any:
    """What the collate function makes of a sample alone. It may take fields out of what it is
    given."""
    return collate_fn([dict(sample) if isinstance(sample, Mapping) else sample])
