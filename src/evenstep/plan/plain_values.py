"""Options as plain values and text, equal on every rank and in every run, so that they compare."""

from __future__ import annotations

import re
from typing import Any

import numpy as np


def plain_value(value: object) -> Any:
    """Numbers, text and None as they are, everything else as its `stable_repr`."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (int, float, str)):
        return value
    return stable_repr(value)


def stable_repr(value: object) -> str:
    """The repr without the memory address that functions and objects have in theirs by default:
    it differs between processes."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
