"""Batches and losses that count for nothing: of a rank without samples, where trainers know no
``loss_scale``."""

from __future__ import annotations

from typing import Any

import torch

from evenstep.batch.labels import IGNORE_INDEX

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
