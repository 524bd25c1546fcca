"""`sample_bytes`: the memory that a sample takes, about, found in a microsecond or two."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from evenstep.batch.labels import MAPPINGS, is_tensor

_OBJECT = 112  # bytes of an array or tensor beside its numbers
_NUMBER = 32  # bytes of a number in a list
_PIXEL = 4  # bytes, as Pillow stores it
_DEPTH = 4  # levels of containers; what lies deeper is not counted


def sample_bytes(value: Any, level: int = 0) -> int:
    """Bytes of a sample and of what it holds: text, numbers, arrays, tensors, images, and mappings
    and lists of them. Of an array that is a part of another one, that part is counted."""
    if type(value) is np.ndarray:
        return int(value.nbytes) + _OBJECT
    size = sys.getsizeof(value, _OBJECT)
    parts: Iterable[Any] = ()
    if isinstance(value, MAPPINGS):
        parts = value.values()
    elif is_tensor(value):
        return int(value.nbytes) + _OBJECT
    elif isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)):
            return size + _NUMBER * len(value)
        parts = value
    elif hasattr(value, "__dict__"):
        width, height = getattr(value, "width", None), getattr(value, "height", None)
        if isinstance(width, int) and isinstance(height, int):
            return size + _PIXEL * width * height
        if not level:  # what a field refers to may be anything
            parts = vars(value).values()
    if level < _DEPTH:
        for part in parts:
            size += sample_bytes(part, level + 1)
    return size
