"""Batches that bear no loss: for a rank without samples, where trainers know no ``loss_scale``."""

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
