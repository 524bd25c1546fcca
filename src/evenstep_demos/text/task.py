"""What a demo trains, and on what."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Dataset


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
