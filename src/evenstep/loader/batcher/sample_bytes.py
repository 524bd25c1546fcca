"""How much memory a sample takes, to size windows that hold many."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

SAMPLE_BYTES = 1 << 30
"""Memory that the samples of a rank may take where ``buffer_size="auto"`` sizes its windows."""

_FEW = 16  # items of a long list that stand for all


def sample_bytes(sample: Any) -> int:
    """Bytes of a sample, nearly: those of tensors, arrays and text, and of what contains them."""
    if isinstance(sample, (torch.Tensor, np.ndarray)):
        return int(sample.nbytes)
    if isinstance(sample, Mapping):
        return sum(map(sample_bytes, sample.values()))
    if isinstance(sample, (list, tuple)):
        if not sample:
            return 0
        few = sum(map(sample_bytes, sample[:_FEW]))
        return few * len(sample) // len(sample[:_FEW])
    fields = getattr(sample, "__dict__", None)
    return sys.getsizeof(sample) + (sample_bytes(fields) if fields else 0)
