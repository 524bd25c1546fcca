"""How much memory a sample takes, to size windows that hold many."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from evenstep.batch.count_media import image_bytes
from evenstep.batch.labels import is_tensor

_FEW = 16  # items of a long list that stand for all
_DEEPEST = 8  # containers within each other; an object may hold itself


def sample_bytes(sample: Any, *, deep: int = _DEEPEST) -> int:
    """Bytes of a sample, nearly: those of tensors, arrays and text, and of what contains them.

    Args:
        deep: containers within each other that are looked into.
    """
    if is_tensor(sample):
        return int(sample.numel() * sample.element_size())  # a sparse one takes less
    size = getattr(sample, "nbytes", None)  # of arrays and encoded images
    if isinstance(size, int):
        return size
    if not deep:
        return sys.getsizeof(sample)
    pil: Any = sys.modules.get("PIL.Image")
    if pil is not None and isinstance(sample, pil.Image):
        return image_bytes(sample)
    if isinstance(sample, Mapping):
        return sum(sample_bytes(value, deep=deep - 1) for value in sample.values())
    if isinstance(sample, (list, tuple)):
        if not sample:
            return 0
        few = sum(sample_bytes(item, deep=deep - 1) for item in sample[:_FEW])
        return few * len(sample) // len(sample[:_FEW])
    fields = getattr(sample, "__dict__", None)
    return sys.getsizeof(sample) + (sample_bytes(fields, deep=deep - 1) if fields else 0)
