"""Turns stored rows into samples. Source Loaders call this, so it needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np


def tokens_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Turns a stored document into a sample, whose tokens are bytes of UTF-8."""
    return {"input_ids": np.frombuffer(row["text"].encode(), np.uint8)}


def pieces_of(text: str, most: int) -> list[str]:
    """Cuts `text` into as few parts of about equal length as possible, each of at most `most`
    tokens. Joined, they are the text; an empty text has none."""
    count = math.ceil(len(text.encode()) / most)
    while count:
        bounds = [len(text) * part // count for part in range(count + 1)]
        parts = [text[begin:end] for begin, end in pairwise(bounds)]
        if all(len(part.encode()) <= most for part in parts):
            return parts
        count += 1  # where characters of several bytes lie together
    return []
