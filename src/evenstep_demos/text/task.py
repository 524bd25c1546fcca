"""What a demo trains, and on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset

from evenstep.cost import Cost, PaddedTokenCost


@dataclass(frozen=True, kw_only=True)
class Task:
    """Samples, and the model that learns them; picklable."""

    training: Dataset[Any]
    """Map-style, in random order."""
    lengths: npt.NDArray[np.int64]
    """[samples] tokens: to choose a batch size by, not to form batches by."""
    held_out: Dataset[Any]
    held_out_lengths: npt.NDArray[np.int64]
    collate: Callable[[list[Any]], Mapping[str, torch.Tensor]]
    """Samples -> the arguments of the model, ``input_ids``, ``attention_mask`` and ``labels`` among
    them."""
    model: Callable[[int], torch.nn.Module]
    """Seed -> a model before training. Called, it returns the mean loss per supervised token."""
    cost: Cost = field(default_factory=PaddedTokenCost)
    """What evenstep makes equal between ranks."""

    @classmethod
    def measured(cls, training: Any, held_out: Any, **others: Any) -> Task:
        """The task of raw rows, whose tokens are counted by collating each of them."""
        counts = [
            np.array([others["collate"]([rows[i]])["input_ids"].shape[1] for i in range(len(rows))])
            for rows in (training, held_out)
        ]
        return cls(
            training=training,
            lengths=counts[0],
            held_out=held_out,
            held_out_lengths=counts[1],
            **others,
        )
